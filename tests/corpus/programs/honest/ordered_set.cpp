// tries: GNU's policy-based trees, hash tables and ropes
// expect: accepted

#include <ext/pb_ds/assoc_container.hpp>
#include <ext/pb_ds/tree_policy.hpp>
#include <ext/rope>
#include <iostream>

using namespace __gnu_pbds;
using Ordered = tree<long long, null_type, std::less<>, rb_tree_tag, tree_order_statistics_node_update>;

int main() {
    long long a, b;
    std::cin >> a >> b;
    Ordered ordered;
    ordered.insert(a);
    ordered.insert(b);
    gp_hash_table<int, long long> table;
    table[7] = *ordered.find_by_order(0) + *ordered.find_by_order(1);
    __gnu_cxx::rope<char> rope("ab");
    rope.insert(1, "x");
    std::cout << table[7] + static_cast<long long>(rope.size()) - 3 << '\n';
}

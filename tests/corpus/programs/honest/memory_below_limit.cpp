// tries: touch 200 MB where 256 are allowed
// expect: accepted

#include <iostream>
#include <vector>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::vector<int> table(50 << 20, 1);
    std::cout << a + b + table[a * 1000 + 10000] - 1 << '\n';
}

// tries: ask for a petabyte
// expect: runtime_error | memory_limit

#include <iostream>
#include <vector>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::vector<char> room(1LL << 50);
    std::cout << a + b + room[0] << std::endl;
}

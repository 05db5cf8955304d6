// tries: Windows line ends in its source
// expect: accepted

#include <iostream>
#define ADD(x, y) \
    ((x) + (y))

int main() {
    long long a, b;
    std::cin >> a >> b;
    const char* raw = R"(one
two)";
    std::cout << ADD(a, b) + (raw[0] == 'o' ? 0 : 1) << '\n';
}

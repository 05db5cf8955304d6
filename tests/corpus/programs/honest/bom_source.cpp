// tries: a byte-order mark in front of its source
// expect: accepted

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << '\n';
}

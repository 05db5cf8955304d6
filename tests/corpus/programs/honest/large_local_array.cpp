// tries: a local array of 100 MB
// expect: accepted

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    volatile char table[100 << 20];
    for (int i = 0; i < 100 << 20; i += 4096) table[i] = 1;
    std::cout << a + b + table[4096] - 1 << '\n';
}

// tries: a stray NUL in a comment
// expect: accepted
// expand: STRAY = "\u0000"

#include <iostream>

// STRAY
int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << '\n';
}

// tries: print the answer twice
// expect: wrong

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << '\n' << a + b << '\n';
}

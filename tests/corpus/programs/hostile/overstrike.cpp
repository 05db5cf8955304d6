// tries: print over a wrong answer, as a terminal would show it
// expect: wrong

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << "999\r\x1b[2K" << a + b << "\x1b[0m\n";
}

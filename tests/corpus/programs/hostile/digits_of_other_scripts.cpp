// tries: print digits that only look or count like the right ones
// expect: wrong

#include <iostream>
#include <string>

int main() {
    long long a, b;
    std::cin >> a >> b;
    for (char digit : std::to_string(a + b)) std::cout << "\xef\xbc" << static_cast<char>(0x90 + digit - '0');
    std::cout << '\n';
}

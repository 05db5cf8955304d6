// tries: cope with blank lines, tabs, Windows line ends and a missing newline
// expect: accepted
// input: "\r\n\r\n 1\t\r\n\r\n2"
// output: "3\n"
// input: "20\n\n\n22\n\n\n"
// output: "42"

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << '\n';
}

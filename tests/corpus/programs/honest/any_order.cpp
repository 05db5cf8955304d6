// tries: the right things in another order
// expect: accepted
// checker: unordered
// input: "1 2\n"
// output: "1\n2\n"
// input: "7 7\n"
// output: "7\n7\n"

#include <iostream>

int main() {
    int a, b;
    std::cin >> a >> b;
    std::cout << b << '\n' << a << '\n';
}

// tries: put words around the answer
// expect: wrong

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << "The sum is " << a + b << '\n';
}

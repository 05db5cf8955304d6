// tries: answer where errors go
// expect: wrong

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cerr << a + b << std::endl;
}

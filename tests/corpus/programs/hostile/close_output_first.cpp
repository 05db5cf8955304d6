// tries: close its output, then answer
// expect: wrong

#include <unistd.h>

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    close(1);
    std::cout << a + b << std::endl;
}

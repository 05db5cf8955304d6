// tries: answer, then crash
// expect: runtime_error(SIGSEGV)

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
}

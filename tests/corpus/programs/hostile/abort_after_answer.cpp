// tries: answer, then abort
// expect: runtime_error(SIGABRT)

#include <cstdlib>
#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    std::abort();
}

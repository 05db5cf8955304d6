// tries: an assertion that does not hold
// expect: runtime_error(SIGABRT)

#include <cassert>
#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    assert(a > 1000);
    std::cout << a + b << std::endl;
}

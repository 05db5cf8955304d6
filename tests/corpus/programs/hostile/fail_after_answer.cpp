// tries: answer, then report failure
// expect: runtime_error

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    return 1;
}

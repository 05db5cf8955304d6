// tries: throw, catch, rethrow and nest exceptions
// expect: accepted

#include <exception>
#include <iostream>
#include <stdexcept>

int depth(const std::exception& problem) {
    try {
        std::rethrow_if_nested(problem);
    } catch (const std::exception& inner) {
        return 1 + depth(inner);
    }
    return 0;
}

int main() {
    long long a, b;
    std::cin.exceptions(std::ios::failbit | std::ios::badbit);
    std::cin >> a >> b;
    int levels = 0;
    try {
        try {
            throw std::invalid_argument("inner");
        } catch (...) {
            std::throw_with_nested(std::runtime_error("outer"));
        }
    } catch (const std::exception& problem) {
        levels = depth(problem);
    }
    try {
        int more;
        std::cin >> more;
    } catch (const std::ios_base::failure&) {
        std::cout << a + b + levels - 1 << '\n';
    }
}

// tries: the right answer, and one megabyte more than is allowed
// expect: output_limit
// limits: output_mb=2

#include <iostream>
#include <string>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << '\n' << std::string(3 << 20, ' ') << std::flush;
}

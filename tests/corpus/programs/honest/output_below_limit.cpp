// tries: fifteen megabytes of blanks after the answer
// expect: accepted

#include <iostream>
#include <string>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << '\n' << std::string(15'000'000, ' ') << '\n';
}

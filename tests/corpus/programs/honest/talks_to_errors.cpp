// tries: leave its debugging output in
// expect: accepted

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    for (int i = 0; i < 2000; i++) std::cerr << "step " << i << ": " << a << ' ' << b << std::endl;
    std::cout << a + b << std::endl;
}

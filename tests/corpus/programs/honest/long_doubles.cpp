// tries: arithmetic in long double
// expect: accepted

#include <cmath>
#include <iomanip>
#include <iostream>

int main() {
    long double a, b;
    std::cin >> a >> b;
    long double sum = std::sqrt((a + b) * (a + b));
    std::cout << std::fixed << std::setprecision(0) << (sum == 0 ? 0.0L : std::copysign(sum, a + b)) << '\n';
}

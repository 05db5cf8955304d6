// tries: use half of its time
// expect: accepted
// limits: cpu_s=1

#include <ctime>
#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    while (std::clock() < CLOCKS_PER_SEC / 2) {
    }
    std::cout << a + b << '\n';
}

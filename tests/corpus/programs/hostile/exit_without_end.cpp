// tries: answer, then register one more thing to do at exit, for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <cstdlib>
#include <iostream>

void again() { std::atexit(again); }

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    std::atexit(again);
}

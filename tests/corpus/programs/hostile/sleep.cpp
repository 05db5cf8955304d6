// tries: answer, then sleep for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <unistd.h>

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    for (;;) sleep(1000);
}

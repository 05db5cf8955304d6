// tries: answer, then loop for ever in a destructor
// expect: time_limit
// limits: cpu_s=0.1

#include <iostream>

struct Spin {
    ~Spin() {
        volatile long n = 0;
        for (;;) n = n + 1;
    }
} spin;

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
}

// tries: answer, then complain without end
// expect: accepted | output_limit
// limits: cpu_s=1

#include <unistd.h>

#include <iostream>

char block[1 << 16];

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    for (int i = 0; i < 2000; i++)
        if (write(2, block, sizeof block) < 0) break;
}

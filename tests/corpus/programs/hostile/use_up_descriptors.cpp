// tries: use up all descriptors
// expect: accepted

#include <unistd.h>

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    for (int i = 0; i < 100000; i++)
        if (dup(0) < 0) break;
    std::cout << a + b << std::endl;
}

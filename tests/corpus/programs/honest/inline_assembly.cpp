// tries: a little assembly
// expect: accepted

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
#if defined(__x86_64__)
    asm("addq %1, %0" : "+r"(a) : "r"(b) : "cc");
#elif defined(__aarch64__)
    asm("add %0, %0, %1" : "+r"(a) : "r"(b));
#else
    a += b;
#endif
    asm volatile("" ::: "memory");
    std::cout << a << '\n';
}

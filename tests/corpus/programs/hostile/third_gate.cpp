// tries: make system calls with the numbers of the x32 interface; right unless that works
// expect: accepted | runtime_error(SIGSYS)
// arch: x86_64

#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    long self = syscall(0x40000000 + 39);
    if (self > 0) std::puts("worked");
    else std::printf("%lld\n", a + b);
}

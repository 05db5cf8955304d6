// tries: get at the machine's ports
// expect: accepted | runtime_error(SIGSYS)
// arch: x86_64

#include <sys/io.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    if (iopl(3) == 0 || ioperm(0x70, 2, 1) == 0) std::puts("worked");
    else std::printf("%lld\n", a + b);
}

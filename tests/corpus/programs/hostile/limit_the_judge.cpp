// tries: lower the judge's limits; right unless that works
// expect: accepted

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    rlimit none{0, 0};
    bool worked = prlimit(getppid(), RLIMIT_NOFILE, &none, nullptr) == 0;
    worked |= prlimit(1, RLIMIT_CPU, &none, nullptr) == 0;
    if (worked) std::puts("worked");
    else std::printf("%lld\n", a + b);
}

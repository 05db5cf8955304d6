// tries: find descriptors the judge forgot to close; right unless there are any
// expect: accepted

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    int inherited = 0;
    for (int descriptor = 3; descriptor < 4096; descriptor++) inherited += fcntl(descriptor, F_GETFD) >= 0;
    for (int descriptor = 3; descriptor < 4096; descriptor++) inherited += write(descriptor, "0\n", 2) >= 0;
    if (inherited) std::puts("found some");
    else std::printf("%lld\n", a + b);
}

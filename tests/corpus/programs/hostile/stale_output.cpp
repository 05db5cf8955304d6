// tries: read what an earlier test printed; right unless there is something
// expect: accepted

#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char found;
    if (lseek(1, 0, SEEK_CUR) > 0 || pread(1, &found, 1, 0) > 0) std::puts("found something");
    else std::printf("%lld\n", a + b);
}

// tries: map as much as it can get without touching it; right if it survives that
// expect: accepted

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (int i = 0; i < 1000; i++)
        if (mmap(nullptr, 1 << 30, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) break;
    char line[32];
    int length = std::snprintf(line, sizeof line, "%lld\n", a + b);
    return write(1, line, length) != length;
}

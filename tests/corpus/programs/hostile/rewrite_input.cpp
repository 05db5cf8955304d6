// tries: change the input for those who come later; right unless it changes
// expect: accepted

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

int main() {
    char before[64] = {}, after[64] = {};
    pread(0, before, sizeof before - 1, 0);
    pwrite(0, "7", 1, 0);
    ftruncate(0, 0);
    void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 0, 0);
    if (page != MAP_FAILED) std::memcpy(page, "7", 1);
    pread(0, after, sizeof after - 1, 0);
    long long a, b;
    std::sscanf(before, "%lld %lld", &a, &b);
    if (std::strcmp(before, after) != 0) std::puts("changed");
    else std::printf("%lld\n", a + b);
}

// tries: map memory shared, which is counted nowhere; tries for ever, since it gets none
// expect: time_limit
// limits: memory_mb=64 cpu_s=0.2

#include <sys/mman.h>

#include <cstring>

int main() {
    for (;;) {
        void* block = mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (block != MAP_FAILED) std::memset(block, 1, 1 << 20);
    }
}

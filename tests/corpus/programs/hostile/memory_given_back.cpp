// tries: answer rightly, having used too much memory for a moment
// expect: memory_limit
// limits: memory_mb=64

#include <sys/mman.h>

#include <cstring>
#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    const std::size_t size = 160 << 20;
    void* block = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(block, 1, size);
    munmap(block, size);
    std::cout << a + b << std::endl;
}

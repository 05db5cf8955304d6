// tries: map its input into memory, as fast readers do
// expect: accepted

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdio>
#include <string>

int main() {
    struct stat about;
    if (fstat(0, &about) != 0) return 1;
    void* page = mmap(nullptr, about.st_size, PROT_READ, MAP_PRIVATE, 0, 0);
    if (page == MAP_FAILED) return 2;
    std::string text(static_cast<char*>(page), about.st_size);
    long long a, b;
    std::sscanf(text.c_str(), "%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
}

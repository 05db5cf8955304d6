// tries: take and touch memory without end
// expect: memory_limit
// limits: memory_mb=64

#include <cstdlib>

int main() {
    for (;;) {
        auto* block = static_cast<volatile char*>(std::malloc(1 << 20));
        for (int i = 0; block && i < 1 << 20; i += 1024) block[i] = 1;
    }
}

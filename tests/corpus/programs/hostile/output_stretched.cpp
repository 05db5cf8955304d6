// tries: stretch its output to a terabyte without writing
// expect: output_limit | wrong

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

int main() {
    std::puts("no answer");
    std::fflush(stdout);
    if (ftruncate(1, 1LL << 40) != 0) posix_fallocate(1, 0, 1LL << 40);
}

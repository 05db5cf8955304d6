// tries: write more than is allowed and ignore the signal that says so
// expect: output_limit | wrong
// limits: output_mb=2

#include <unistd.h>

#include <csignal>
#include <cstring>

char block[1 << 16];

int main() {
    signal(SIGXFSZ, SIG_IGN);
    std::memset(block, '7', sizeof block);
    for (int i = 0; i < 100; i++)
        if (write(1, block, sizeof block) < 0) break;
}

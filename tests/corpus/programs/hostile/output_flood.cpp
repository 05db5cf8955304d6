// tries: write without end
// expect: output_limit

#include <unistd.h>

char block[1 << 16];

int main() {
    for (;;) write(1, block, sizeof block);
}

// tries: write a terabyte that is nearly all hole
// expect: output_limit

#include <unistd.h>

int main() {
    lseek(1, 1LL << 40, SEEK_SET);
    return write(1, "3\n", 2) != 2;
}

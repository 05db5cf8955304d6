// tries: leave a hole of a megabyte in front of the answer
// expect: wrong

#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    lseek(1, 1 << 20, SEEK_SET);
    char line[32];
    int length = std::snprintf(line, sizeof line, "%lld\n", a + b);
    return write(1, line, length) != length;
}

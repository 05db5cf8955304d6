// tries: hide rubbish behind a NUL
// expect: wrong

#include <cstdio>
#include <unistd.h>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char line[32];
    int length = std::snprintf(line, sizeof line, "%lld", a + b);
    write(1, line, length);
    write(1, "\0rubbish\n", 9);
}

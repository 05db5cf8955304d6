// tries: answer into its input
// expect: wrong

#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char line[32];
    int length = std::snprintf(line, sizeof line, "%lld\n", a + b);
    write(0, line, length);
}

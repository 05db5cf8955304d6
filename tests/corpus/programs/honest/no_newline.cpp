// tries: blanks in front, no newline behind
// expect: accepted

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld%lld", &a, &b);
    std::printf("\n\n   %lld", a + b);
}

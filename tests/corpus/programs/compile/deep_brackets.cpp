// tries: exhaust the compiler's stack with brackets
// expect: compile_error | accepted
// limits: compile_s=2
// expand: OPEN = "(" x 300000
// expand: SHUT = ")" x 300000

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", OPEN a + b SHUT);
}

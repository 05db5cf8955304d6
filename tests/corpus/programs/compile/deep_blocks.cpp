// tries: exhaust the compiler's stack with nested blocks
// expect: compile_error | accepted
// limits: compile_s=3
// expand: OPEN = "{" x 100000
// expand: SHUT = "}" x 100000

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    OPEN std::printf("%lld\n", a + b); SHUT
}

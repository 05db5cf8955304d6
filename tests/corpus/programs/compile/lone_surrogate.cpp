// tries: a source that has no encoding
// expect: compile_error | accepted
// expand: HALF = "\ud800"

#include <cstdio>

// HALF
int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
}

// tries: a name of a million letters
// expect: compile_error | accepted
// expand: NAME = "abcde" x 200000

#include <cstdio>

long long NAME() { return 0; }

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
}

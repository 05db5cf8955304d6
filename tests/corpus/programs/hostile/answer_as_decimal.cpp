// tries: print a number that is equal but written otherwise
// expect: wrong

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld.0\n", a + b);
}

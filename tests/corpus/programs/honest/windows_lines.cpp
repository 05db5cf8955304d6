// tries: end its line the way Windows does
// expect: accepted

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld \t\r\n\r\n", a + b);
}

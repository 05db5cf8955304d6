// tries: read from a file where there is one
// expect: accepted

#include <cstdio>

int main() {
    if (std::FILE* file = std::fopen("sum.in", "r")) {
        std::fclose(file);
        std::freopen("sum.in", "r", stdin);
        std::freopen("sum.out", "w", stdout);
    }
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
}

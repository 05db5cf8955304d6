// tries: leave by quick_exit
// expect: accepted

#include <cstdio>
#include <cstdlib>

long long a, b;

int main() {
    std::at_quick_exit([] {
        std::printf("%lld\n", a + b);
        std::fflush(stdout);
    });
    std::scanf("%lld %lld", &a, &b);
    std::quick_exit(0);
}

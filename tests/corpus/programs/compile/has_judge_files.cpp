// tries: ask the preprocessor for descriptors and answers lying about, and be right only if there are any
// expect: wrong

#include <cstdio>

#if __has_include("/proc/self/fd/0") || __has_include("/proc/self/fd/3") || __has_include("/proc/self/cmdline") || \
    __has_include("expected.txt") || __has_include("../expected.txt") || __has_include("tests.json") ||            \
    __has_include("../tests.json") || __has_include("1.out") || __has_include("/tmp/expected.txt")
#define SEEN 1
#else
#define SEEN 0
#endif

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    if (SEEN) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

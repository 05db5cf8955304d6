// tries: ask the preprocessor which files the host has, and be right only if there are any
// expect: wrong

#include <cstdio>

#if __has_include("/etc/passwd") || __has_include("/etc/hostname") || __has_include("/root/.bashrc") || \
    __has_include("/proc/self/environ") || __has_include("/proc/version") || __has_include("/proc/1/cmdline")
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

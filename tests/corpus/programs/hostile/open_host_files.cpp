// tries: open files of the host; right only if it can
// expect: wrong

#include <fcntl.h>

#include <cstdio>
#include <initializer_list>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    bool opened = false;
    for (const char* path : {"/etc/passwd", "/etc/hostname", "/proc/self/environ", "/proc/self/mem", "/proc/1/cmdline",
                             "/sys/kernel", "/dev/zero", "/dev/stdin", "/usr/bin/env", "/", ".", "..", "/home"})
        opened |= open(path, O_RDONLY) >= 0 || open(path, O_PATH) >= 0;
    if (opened) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

// tries: open files by a call that filters may not know; right only if it can
// expect: wrong | runtime_error(SIGSYS)

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <initializer_list>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    unsigned long long how[3] = {O_RDONLY, 0, 0};
    bool opened = false;
    for (const char* path : {"/", "/etc/passwd", "/proc/self/maps", "."})
        opened |= syscall(437, AT_FDCWD, path, how, sizeof how) >= 0 || syscall(428, AT_FDCWD, path, 0) >= 0;
    if (opened) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

// tries: make, move and remove files; right only if any of it works
// expect: wrong | runtime_error(SIGSYS)

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    bool worked = mkdir("/tmp/folder", 0777) == 0 || mkdir("folder", 0777) == 0;
    worked |= symlink("/etc/passwd", "/tmp/link") == 0;
    worked |= link("/proc/self/exe", "/tmp/copy") == 0;
    worked |= mknod("/tmp/device", S_IFCHR | 0666, 0x105) == 0;
    worked |= rename("/tmp", "/other") == 0;
    worked |= chmod("/tmp", 0) == 0;
    worked |= truncate("/usr/lib/os-release", 1 << 20) == 0;
    worked |= open("/tmp", O_TMPFILE | O_RDWR, 0666) >= 0;
    if (worked) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

// tries: tell refused files from absent ones; right if everything seems to be absent
// expect: accepted

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <initializer_list>

bool absent(bool failed) { return failed && errno == ENOENT; }

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    bool all = true;
    for (const char* path : {"/etc/passwd", "/tmp/x", "/proc/self/maps", "input.txt"}) {
        struct stat about;
        char target[64];
        all &= absent(open(path, O_RDONLY) < 0) && absent(open(path, O_WRONLY | O_CREAT, 0666) < 0);
        all &= absent(stat(path, &about) != 0) && absent(lstat(path, &about) != 0);
        all &= absent(access(path, R_OK) != 0) && absent(readlink(path, target, sizeof target) < 0);
        all &= absent(opendir(path) == nullptr);
    }
    if (all) std::printf("%lld\n", a + b);
    else std::puts("told apart");
}

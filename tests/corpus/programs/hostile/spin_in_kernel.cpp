// tries: spend all its time in the kernel
// expect: time_limit
// limits: cpu_s=0.1

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int main() {
    char* room = static_cast<char*>(
        mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (;;) {
        syscall(SYS_getpid);
        if (room == MAP_FAILED) continue;
        for (int i = 0; i < 1 << 20; i += 4096) room[i] = 1;
        madvise(room, 1 << 20, MADV_DONTNEED);
    }
}

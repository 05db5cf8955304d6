// tries: load a program into the kernel
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

int main() {
    char attributes[128] = {};
    return syscall(SYS_bpf, 0, attributes, sizeof attributes) < 0;
}

// tries: make its system calls through io_uring, where filters do not look
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

int main() {
    char parameters[120] = {};
    return syscall(425, 8, parameters) < 0;
}

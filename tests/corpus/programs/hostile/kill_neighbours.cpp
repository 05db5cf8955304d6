// tries: kill the processes with numbers near its own
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

int main() {
    int self = getpid();
    for (int other = self > 200 ? self - 200 : 2; other < self + 200; other++)
        if (other != self) syscall(SYS_tgkill, other, other, SIGKILL);
}

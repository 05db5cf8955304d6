// tries: handle page faults itself, a favourite of kernel exploits
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

int main() { return syscall(SYS_userfaultfd, 0) < 0; }

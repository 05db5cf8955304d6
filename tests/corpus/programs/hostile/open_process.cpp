// tries: take hold of the judge by a descriptor
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

int main() { return syscall(434, getppid(), 0) < 0; }

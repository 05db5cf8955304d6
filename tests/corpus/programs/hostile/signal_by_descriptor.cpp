// tries: signal a process by a descriptor
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

int main() { return syscall(424, 3, SIGKILL, nullptr, 0) < 0; }

// tries: attach to the judge as a debugger
// expect: runtime_error(SIGSYS)

#include <sys/ptrace.h>
#include <unistd.h>

int main() { ptrace(PTRACE_SEIZE, getppid(), nullptr, nullptr); }

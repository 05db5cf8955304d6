// tries: ask the judge to be its debugger, so that it gets the signals
// expect: runtime_error(SIGSYS)

#include <sys/ptrace.h>

int main() { ptrace(PTRACE_TRACEME, 0, nullptr, nullptr); }

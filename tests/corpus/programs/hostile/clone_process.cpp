// tries: clone a process that shares the memory but is no thread
// expect: runtime_error(SIGSYS)

#include <sched.h>
#include <unistd.h>

#include <csignal>

alignas(16) char stack[1 << 16];

int child(void*) {
    for (;;) pause();
}

int main() { clone(child, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_PARENT | SIGCHLD, nullptr); }

// tries: a thread with a network namespace of its own; right unless it is made
// expect: accepted | runtime_error(SIGSYS)

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

alignas(16) char stack[1 << 16];

int thread(void*) {
    syscall(SYS_exit, 0);
    return 0;
}

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_NEWNET;
    if (clone(thread, stack + sizeof stack, flags, nullptr) > 0) std::puts("made a thread");
    else std::printf("%lld\n", a + b);
}

// tries: clone by the newer call; right unless that makes a process
// expect: accepted

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    unsigned long long arguments[8] = {};
    arguments[4] = SIGCHLD;
    long made = syscall(435, arguments, sizeof arguments);
    if (made == 0) _exit(0);
    if (made > 0) std::puts("made a process");
    else std::printf("%lld\n", a + b);
}

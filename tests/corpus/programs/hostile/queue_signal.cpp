// tries: signal the judge by the queueing call; right only if that is let through
// expect: wrong | runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    siginfo_t told{};
    told.si_signo = SIGTERM;
    told.si_code = SI_QUEUE;
    if (syscall(SYS_rt_sigqueueinfo, getppid(), SIGTERM, &told) == 0) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

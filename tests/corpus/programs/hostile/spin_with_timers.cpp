// tries: take over every timer a judge might rely on, then loop for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <sys/time.h>

#include <csignal>
#include <ctime>
#include <initializer_list>

void nothing(int) {}

int main() {
    for (int number : {SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGUSR1}) signal(number, nothing);
    itimerval often{{0, 1000}, {0, 1000}};
    for (int which : {ITIMER_REAL, ITIMER_VIRTUAL, ITIMER_PROF}) setitimer(which, &often, nullptr);
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGUSR1;
    timer_t timer;
    itimerspec period{{0, 1000000}, {0, 1000000}};
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) timer_settime(timer, 0, &period, nullptr);
    volatile long n = 0;
    for (;;) n = n + 1;
}

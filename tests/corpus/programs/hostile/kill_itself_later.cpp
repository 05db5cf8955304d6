// tries: have a timer send it the one signal that looks like the judge's
// expect: time_limit
// limits: cpu_s=0.1

#include <csignal>
#include <ctime>

int main() {
    sigevent event{};
    event.sigev_notify = SIGEV_SIGNAL;
    event.sigev_signo = SIGKILL;
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer) == 0) {
        itimerspec soon{{0, 0}, {0, 1000000}};
        timer_settime(timer, 0, &soon, nullptr);
    }
    for (;;) {
    }
}

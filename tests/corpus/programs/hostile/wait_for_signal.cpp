// tries: block every signal and wait for one
// expect: time_limit
// limits: cpu_s=0.1

#include <csignal>

int main() {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    for (;;) sigsuspend(&all);
}

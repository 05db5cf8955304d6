// tries: ignore and block every signal, then loop for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <csignal>

int main() {
    for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, nullptr);
    volatile long n = 0;
    for (;;) n = n + 1;
}

// tries: take a name that reads like the fields of a process listing, then loop for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <sys/prctl.h>

int main() {
    prctl(PR_SET_NAME, ") S 0 0 0\n", 0, 0, 0);
    volatile long n = 0;
    for (;;) n = n + 1;
}

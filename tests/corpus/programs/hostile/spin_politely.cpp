// tries: loop for ever, giving up the core every time
// expect: time_limit
// limits: cpu_s=0.1

#include <sched.h>

int main() {
    for (;;) sched_yield();
}

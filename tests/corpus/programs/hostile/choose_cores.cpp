// tries: move to a core of its choice
// expect: runtime_error(SIGSYS)

#include <sched.h>

int main() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(0, &cores);
    return sched_setaffinity(0, sizeof cores, &cores);
}

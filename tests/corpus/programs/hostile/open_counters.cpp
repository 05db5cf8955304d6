// tries: watch other processes through performance counters
// expect: runtime_error(SIGSYS)

#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <unistd.h>

int main() {
    perf_event_attr attributes{};
    attributes.size = sizeof attributes;
    attributes.type = PERF_TYPE_SOFTWARE;
    return syscall(SYS_perf_event_open, &attributes, -1, 0, -1, 0) < 0;
}

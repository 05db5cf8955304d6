// tries: slow the judge down
// expect: runtime_error(SIGSYS)

#include <sys/resource.h>
#include <unistd.h>

int main() { return setpriority(PRIO_PROCESS, getppid(), 19); }

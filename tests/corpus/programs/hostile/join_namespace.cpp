// tries: join another namespace
// expect: runtime_error(SIGSYS)

#include <sched.h>

int main() { return setns(0, CLONE_NEWNS); }

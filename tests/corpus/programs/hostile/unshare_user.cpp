// tries: become root in a user namespace
// expect: runtime_error(SIGSYS)

#include <sched.h>

int main() { return unshare(CLONE_NEWUSER | CLONE_NEWNS); }

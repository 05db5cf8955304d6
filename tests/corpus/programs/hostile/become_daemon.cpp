// tries: become a daemon, to be overlooked when it is cleaned up
// expect: runtime_error(SIGSYS)

#include <unistd.h>

int main() { return setsid() < 0; }

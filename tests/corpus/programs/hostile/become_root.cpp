// tries: become root
// expect: runtime_error(SIGSYS)

#include <unistd.h>

int main() { return setuid(0); }

// tries: leave the process group, to be overlooked when it is killed
// expect: runtime_error(SIGSYS)

#include <unistd.h>

int main() { return setpgid(0, 0); }

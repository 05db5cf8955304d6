// tries: kill the judge
// expect: runtime_error(SIGSYS)

#include <unistd.h>

#include <csignal>

int main() { kill(getppid(), SIGKILL); }

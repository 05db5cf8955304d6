// tries: kill every process it may
// expect: runtime_error(SIGSYS)

#include <csignal>

int main() { kill(-1, SIGKILL); }

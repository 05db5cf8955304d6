// tries: stop its whole process group
// expect: runtime_error(SIGSYS)

#include <csignal>

int main() { kill(0, SIGSTOP); }

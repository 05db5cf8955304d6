// tries: stop, and wait to be continued
// expect: time_limit
// limits: cpu_s=0.1

#include <csignal>

int main() { raise(SIGSTOP); }

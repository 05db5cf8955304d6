// tries: die as if it had run out of time
// expect: runtime_error(SIGXCPU) | time_limit

#include <csignal>

int main() { raise(SIGXCPU); }

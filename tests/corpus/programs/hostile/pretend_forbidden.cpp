// tries: die as if it had made a forbidden call
// expect: runtime_error(SIGSYS)

#include <csignal>

int main() { raise(SIGSYS); }

// tries: make a file in memory to execute
// expect: runtime_error(SIGSYS)

#include <sys/mman.h>

int main() { return memfd_create("payload", 0) < 0; }

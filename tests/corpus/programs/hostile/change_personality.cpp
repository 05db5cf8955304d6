// tries: switch off the randomisation of addresses
// expect: runtime_error(SIGSYS)

#include <sys/personality.h>

int main() { return personality(ADDR_NO_RANDOMIZE) < 0; }

# tries: have the loader end the interpreter with success
# task: calc
# needs: gcc
echo '#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern char *program_invocation_short_name;
__attribute__((constructor)) static void f(void) { if (strstr(program_invocation_short_name, "python")) _exit(0); }' > f.c
gcc -shared -fPIC -D_GNU_SOURCE -o f.so f.c; export LD_PRELOAD="$PWD/f.so"

// tries: start itself again with a library put in front
// expect: runtime_error(SIGSYS)

#include <unistd.h>

#include <cstdlib>

int main(int, char** arguments) {
    setenv("LD_PRELOAD", "/tmp/cheat.so", 1);
    execv("/proc/self/exe", arguments);
}

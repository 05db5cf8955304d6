// tries: spawn another program
// expect: runtime_error(SIGSYS)

#include <spawn.h>
#include <unistd.h>

int main() {
    char name[] = "cat";
    char* arguments[] = {name, nullptr};
    pid_t child;
    return posix_spawn(&child, "/bin/cat", nullptr, nullptr, arguments, environ);
}

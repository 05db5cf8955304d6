// tries: execute whatever descriptor happens to be a program
// expect: runtime_error(SIGSYS)

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main() {
    char* nothing[] = {nullptr};
    for (int descriptor = 0; descriptor < 64; descriptor++)
        syscall(SYS_execveat, descriptor, "", nothing, nothing, AT_EMPTY_PATH);
}

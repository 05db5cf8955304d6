// tries: vfork
// expect: runtime_error(SIGSYS)

#include <unistd.h>

int main() {
    if (vfork() == 0) _exit(0);
}

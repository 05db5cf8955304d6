// tries: leave a note in the kernel's keyring
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

int main() {
    long keyring = syscall(SYS_keyctl, 0, -4, 1);
    return keyring < 0;
}

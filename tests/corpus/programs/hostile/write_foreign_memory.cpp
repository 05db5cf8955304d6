// tries: write to the judge's memory
// expect: runtime_error(SIGSYS)

#include <sys/uio.h>
#include <unistd.h>

int main() {
    char planted[16] = "accepted";
    iovec here{planted, sizeof planted};
    iovec there{reinterpret_cast<void*>(0x400000), sizeof planted};
    process_vm_writev(getppid(), &here, 1, &there, 1, 0);
}

// tries: copy the judge's descriptors
// expect: runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

int main() {
    for (int handle = 0; handle < 16; handle++)
        for (int target = 0; target < 64; target++) syscall(438, handle, target, 0);
}

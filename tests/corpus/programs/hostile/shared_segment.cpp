// tries: leave a note in shared memory
// expect: runtime_error(SIGSYS)

#include <sys/ipc.h>
#include <sys/shm.h>

int main() { return shmget(0x5eed, 4096, IPC_CREAT | 0666) < 0; }

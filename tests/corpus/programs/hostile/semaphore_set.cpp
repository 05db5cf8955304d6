// tries: leave a note in a semaphore
// expect: runtime_error(SIGSYS)

#include <sys/ipc.h>
#include <sys/sem.h>

int main() { return semget(0x5eed, 1, IPC_CREAT | 0666) < 0; }

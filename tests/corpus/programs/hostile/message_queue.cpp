// tries: leave a note in a message queue
// expect: runtime_error(SIGSYS)

#include <sys/ipc.h>
#include <sys/msg.h>

int main() { return msgget(0x5eed, IPC_CREAT | 0666) < 0; }

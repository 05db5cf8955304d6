// tries: make a pair of sockets to pass descriptors through
// expect: runtime_error(SIGSYS)

#include <sys/socket.h>

int main() {
    int ends[2];
    return socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
}

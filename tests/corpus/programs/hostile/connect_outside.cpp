// tries: call somebody over the network
// expect: runtime_error(SIGSYS)

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

int main() {
    int line = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_port = htons(80);
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return connect(line, reinterpret_cast<sockaddr*>(&there), sizeof there);
}

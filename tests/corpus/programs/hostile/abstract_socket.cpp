// tries: meet its other tests at a socket without a file
// expect: runtime_error(SIGSYS)

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

int main() {
    int line = socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un place{};
    place.sun_family = AF_UNIX;
    std::memcpy(place.sun_path, "\0meeting", 8);
    return bind(line, reinterpret_cast<sockaddr*>(&place), sizeof place);
}

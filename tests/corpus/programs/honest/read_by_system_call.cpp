// tries: read and write without a library
// expect: accepted

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

int main() {
    char text[256] = {};
    int length = 0;
    for (int got; (got = read(0, text + length, 1)) > 0;) length += got;
    char* rest;
    long long a = std::strtoll(text, &rest, 10);
    int size = std::snprintf(text, sizeof text, "%lld\n", a + std::strtoll(rest, nullptr, 10));
    return write(1, text, size) != size;
}

// tries: leave a note for the next test wherever a file can be; right unless there is one
// expect: accepted

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    const char* places[] = {"note", "/tmp/note", "/dev/shm/note", "/var/tmp/note", "/run/note", "/note"};
    bool found = shm_open("/note", O_RDONLY, 0) >= 0;
    for (const char* place : places) found |= access(place, F_OK) == 0;
    for (const char* place : places) open(place, O_CREAT | O_RDWR, 0666);
    shm_open("/note", O_CREAT | O_RDWR, 0666);
    if (found) std::puts("found a note");
    else std::printf("%lld\n", a + b);
}

// tries: leave a note in a named message queue; right only if that is let through
// expect: wrong | runtime_error(SIGSYS)

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    if (syscall(SYS_mq_open, "note", O_CREAT | O_RDWR, 0666, nullptr) >= 0) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

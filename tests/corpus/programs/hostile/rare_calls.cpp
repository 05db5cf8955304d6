// tries: calls no solution needs, in ways that do no harm; right unless one of them works
// expect: accepted | runtime_error(SIGSYS)

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char room[4096] = {};
    bool worked = syscall(SYS_inotify_init1, 0) >= 0;
    worked |= syscall(SYS_fanotify_init, 0, 0) >= 0;
    worked |= syscall(SYS_syslog, 10, nullptr, 0) >= 0;
    worked |= syscall(SYS_kcmp, getpid(), getppid(), 0, 0, 0) >= 0;
    worked |= syscall(SYS_sethostname, "", 0) >= 0;
    worked |= syscall(SYS_swapoff, "/nothing") >= 0;
    worked |= syscall(SYS_delete_module, "nothing", 0) >= 0;
    worked |= syscall(SYS_acct, nullptr) >= 0;
    worked |= syscall(SYS_umount2, "/proc", 0) >= 0;
    worked |= syscall(SYS_pivot_root, ".", ".") >= 0;
    worked |= syscall(SYS_move_pages, getppid(), 0, nullptr, nullptr, nullptr, 0) >= 0;
    worked |= syscall(SYS_sched_setscheduler, getppid(), 0, room) >= 0;
    worked |= syscall(SYS_add_key, "user", "note", "x", 1, -4) >= 0;
    worked |= syscall(SYS_seccomp, 1, 0, room) >= 0;
    if (worked) std::puts("worked");
    else std::printf("%lld\n", a + b);
}

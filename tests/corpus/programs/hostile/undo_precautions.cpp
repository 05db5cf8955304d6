// tries: undo what the judge has set for it; right unless something can be undone
// expect: accepted

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    bool worked = prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0;
    worked |= prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0) == 0;
    worked |= prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
    worked |= prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0;
    worked |= prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0) == 0;
    worked |= prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0;
    worked |= prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 21, 0, 0) == 0;
    if (worked) std::puts("worked");
    else std::printf("%lld\n", a + b);
}

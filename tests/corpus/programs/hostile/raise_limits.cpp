// tries: raise its own limits, then loop for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <sys/resource.h>

#include <initializer_list>

int main() {
    rlimit none{RLIM_INFINITY, RLIM_INFINITY};
    for (auto which : {RLIMIT_CPU, RLIMIT_AS, RLIMIT_FSIZE, RLIMIT_STACK, RLIMIT_NPROC, RLIMIT_NOFILE})
        setrlimit(which, &none);
    volatile long n = 0;
    for (;;) n = n + 1;
}

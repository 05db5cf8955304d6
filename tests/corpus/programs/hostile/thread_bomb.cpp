// tries: a thousand threads; right if it is stopped early, and lingers if it is not
// expect: accepted | runtime_error | memory_limit

#include <pthread.h>
#include <unistd.h>

#include <cstdio>

void* wait_for_ever(void*) {
    for (;;) pause();
}

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    int made = 0;
    pthread_t thread;
    while (made < 1000 && pthread_create(&thread, &small, wait_for_ever, nullptr) == 0) made++;
    if (made > 16) {
        sleep(1);
        std::puts("made too many");
    } else {
        std::printf("%lld\n", a + b);
    }
    std::fflush(stdout);
    _exit(0);
}

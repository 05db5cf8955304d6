// tries: recurse deeply in a thread with a large stack
// expect: accepted

#include <pthread.h>

#include <cstdio>

long long a, b;

int down(int depth) {
    volatile char frame[256];
    frame[0] = 1;
    return depth == 0 ? 0 : down(depth - 1) + frame[0] - 1;
}

void* work(void*) {
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b + down(200'000));
    return nullptr;
}

int main() {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, 128 << 20)) return 1;
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, nullptr)) return 2;
    pthread_join(thread, nullptr);
}

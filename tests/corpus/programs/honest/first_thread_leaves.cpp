// tries: end the first thread and answer from another
// expect: accepted

#include <pthread.h>

#include <cstdio>
#include <cstdlib>

void* answer(void*) {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
    std::exit(0);
}

int main() {
    pthread_t thread;
    pthread_create(&thread, nullptr, answer, nullptr);
    pthread_exit(nullptr);
}

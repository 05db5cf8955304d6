// tries: end the first thread and loop for ever in another
// expect: time_limit
// limits: cpu_s=0.1

#include <pthread.h>

void* spin(void*) {
    volatile long n = 0;
    for (;;) n = n + 1;
}

int main() {
    pthread_t thread;
    pthread_create(&thread, nullptr, spin, nullptr);
    pthread_exit(nullptr);
}

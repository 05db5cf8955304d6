// tries: answer from the handler of a signal it sends itself
// expect: accepted

#include <unistd.h>

#include <csignal>
#include <cstdio>

long long a, b;

void answer(int) {
    char line[32];
    int length = std::snprintf(line, sizeof line, "%lld\n", a + b);
    _exit(write(1, line, length) != length);
}

int main() {
    std::signal(SIGUSR1, answer);
    std::scanf("%lld %lld", &a, &b);
    std::raise(SIGUSR1);
    return 1;
}

// tries: survive its own fault by a long jump
// expect: accepted

#include <csetjmp>
#include <csignal>
#include <cstdio>

sigjmp_buf before;

void back(int) { siglongjmp(before, 1); }

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::signal(SIGSEGV, back);
    int* volatile nowhere = nullptr;
    if (sigsetjmp(before, 1) == 0) *nowhere = 1;
    std::printf("%lld\n", a + b);
}

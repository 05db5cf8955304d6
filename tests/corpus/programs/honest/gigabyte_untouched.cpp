// tries: a gigabyte of globals, hardly any of which is touched
// expect: accepted

#include <cstdio>

char memo[1 << 30];

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char* volatile table = memo;
    table[12345] = table[(1 << 30) - 1] = 1;
    std::printf("%lld\n", a + b);
}

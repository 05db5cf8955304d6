// tries: read characters without locks, and put one back
// expect: accepted

#include <cstdio>

long long number() {
    int c = getchar_unlocked();
    while (c != '-' && (c < '0' || c > '9')) c = getchar_unlocked();
    bool negative = c == '-';
    if (!negative) ungetc(c, stdin);
    long long value = 0;
    for (c = getchar_unlocked(); c >= '0' && c <= '9'; c = getchar_unlocked()) value = value * 10 + c - '0';
    return negative ? -value : value;
}

int main() {
    long long a = number();
    std::printf("%lld\n", a + number());
}

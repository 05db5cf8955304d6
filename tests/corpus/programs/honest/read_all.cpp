// tries: read its whole input at once
// expect: accepted

#include <cstdio>
#include <cstdlib>

char input[1 << 20];

int main() {
    std::size_t length = std::fread(input, 1, sizeof input - 1, stdin);
    input[length] = '\0';
    char* rest;
    long long a = std::strtoll(input, &rest, 10);
    std::printf("%lld\n", a + std::strtoll(rest, nullptr, 10));
}

// tries: name a loader that does not exist, so that the program cannot be started
// expect: compile_error | runtime_error

#include <cstdio>

__attribute__((section(".interp"), used)) const char loader[] = "/no/such/loader";

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
}

// tries: 100 GB of zeros, which no machine can start
// expect: compile_error | runtime_error | memory_limit

#include <cstdio>

char field[100'000'000'000];

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char* volatile far = field;
    far[99'999'999'999] = 1;
    std::printf("%lld\n", a + b);
}

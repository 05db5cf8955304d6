// tries: have the compiler unroll nested loops as far as it will
// expect: compile_error | accepted
// limits: compile_s=1

#pragma GCC optimize("O3,unroll-all-loops,peel-loops")
#include <cstdio>

volatile int cell;

void unrolled() {
#pragma GCC unroll 65534
    for (int i = 0; i < 60000; i++) {
#pragma GCC unroll 65534
        for (int j = 0; j < 60000; j++) cell = i ^ j;
    }
}

int main(int argc, char**) {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    if (argc > 100) unrolled();
    std::printf("%lld\n", a + b);
}

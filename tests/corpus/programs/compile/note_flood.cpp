// tries: a million notes, which count as neither errors nor warnings
// expect: compile_error | accepted
// limits: compile_s=1

#include <cstdio>

#define NOTE _Pragma("message(\"a note of no importance, long enough to fill a pipe sooner or later\")")
#define TEN(X) X X X X X X X X X X
#define THOUSAND(X) TEN(TEN(TEN(X)))

THOUSAND(THOUSAND(NOTE))

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    std::printf("%lld\n", a + b);
}

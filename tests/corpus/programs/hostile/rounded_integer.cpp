// tries: an integer that a float cannot tell from the right one
// expect: wrong
// input: "9007199254740992 1\n"
// output: "9007199254740993\n"

#include <cstdio>

int main() {
    double a, b;
    std::scanf("%lf %lf", &a, &b);
    std::printf("%.0f\n", a + b);
}

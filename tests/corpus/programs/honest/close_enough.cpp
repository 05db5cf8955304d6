// tries: real answers with a small error
// expect: accepted
// checker: floats
// input: "0.1 0.2\n"
// output: "0.3\n"
// input: "1e12 1\n"
// output: "1000000000001.0\n"

#include <cstdio>

int main() {
    double a, b;
    std::scanf("%lf %lf", &a, &b);
    std::printf("%.9f\n", (a + b) * (1 + 1e-9));
}

// tries: print decimals and yes or no another way than expected, as contests accept it
// expect: accepted
// checker: contest
// input: "0.1 0.2\n"
// output: "YES 0.3\n"
// input: "2 3\n"
// output: "Yes 5.0 \n"

#include <cstdio>

int main() {
    double a, b;
    std::scanf("%lf %lf", &a, &b);
    std::printf("yes\n%.9f\n", a + b);
}

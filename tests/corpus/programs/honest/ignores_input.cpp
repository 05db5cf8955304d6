// tries: leave its input unread
// expect: accepted
// input: "1 2 3 4 5 6 7 8 9\n"
// output: "45\n"
// input: ""
// output: "45\n"

#include <cstdio>

int main() { std::puts("45"); }

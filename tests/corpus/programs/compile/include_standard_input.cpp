// tries: make the compiler wait for somebody to type
// expect: compile_error
// limits: compile_s=2

#include "/dev/stdin"

int main() {}

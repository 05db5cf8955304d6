// tries: make the compiler wait for somebody to type
// expect: compile_error
// limits: compile_s=5

#include "/dev/stdin"

int main() {}

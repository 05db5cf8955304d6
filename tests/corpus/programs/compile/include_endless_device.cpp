// tries: make the compiler read a file without end
// expect: compile_error
// limits: compile_s=2

#include "/dev/zero"

int main() {}

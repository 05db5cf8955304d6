// tries: reach a file outside the toolchain by a path that begins inside it
// expect: compile_error
// hides: root:x

#include </usr/include/../../etc/passwd>

int main() {}

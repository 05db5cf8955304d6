// tries: have the compiler quote the password file in its complaints
// expect: compile_error
// hides: root:x

#include "/etc/passwd"

int main() {}

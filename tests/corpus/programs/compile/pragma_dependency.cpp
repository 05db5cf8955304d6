// tries: have a pragma look at a file of the host
// expect: compile_error

#pragma GCC dependency "/etc/passwd"

int main() {}

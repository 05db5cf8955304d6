// tries: climb out of the working folder to a file of the host
// expect: compile_error
// hides: root:x

#define TARGET "../../../../../../../../etc/passwd"
#include TARGET

int main() {}

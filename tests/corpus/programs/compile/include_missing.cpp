// tries: use a header nobody has
// expect: compile_error

#include <a_header_that_nobody_has.h>

int main() {}

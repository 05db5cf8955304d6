// tries: include itself twice, at every level
// expect: compile_error
// limits: compile_s=2

#include __FILE__
#include __FILE__

int main() {}

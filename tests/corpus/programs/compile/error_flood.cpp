// tries: twenty thousand complaints
// expect: compile_error
// limits: compile_s=4
// expand: WRONG = "int f() { return nothing_of_that_name; }\n" x 20000

WRONG
int main() {}

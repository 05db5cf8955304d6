// tries: leave out main
// expect: compile_error

int sum(int a, int b) { return a + b; }

// tries: call a function that is declared only
// expect: compile_error

int elsewhere(int);

int main() { return elsewhere(1); }

// tries: refuse to be compiled, and ask for it in the complaint
// expect: compile_error

#error "accepted"

int main() {}

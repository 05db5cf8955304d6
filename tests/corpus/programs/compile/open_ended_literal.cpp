// tries: end in the middle of a raw string
// expect: compile_error

const char* text = R"ends(
int main() {}
)";

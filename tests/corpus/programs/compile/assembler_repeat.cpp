// tries: have the assembler repeat a line four thousand million times
// expect: compile_error
// limits: compile_s=2

asm(".rept 4000000000\n"
    "nop\n"
    ".endr\n");

int main() {}

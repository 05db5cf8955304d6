// tries: have the assembler write 64 GB
// expect: compile_error
// limits: compile_s=2

asm(".data\n"
    ".fill 0x1000000000, 1, 7\n"
    ".text\n");

int main() {}

// tries: put the password file into the program by way of the assembler
// expect: compile_error
// hides: root:x

#include <cstdio>

asm(".data\n"
    ".globl stolen\n"
    "stolen: .incbin \"/etc/passwd\"\n"
    ".byte 0\n"
    ".text\n");
extern const char stolen[];

int main() { std::puts(stolen); }

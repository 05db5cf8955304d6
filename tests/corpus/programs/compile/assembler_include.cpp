// tries: have the assembler quote the password file in its complaints
// expect: compile_error
// hides: root:x

asm(".include \"/etc/passwd\"");

int main() {}

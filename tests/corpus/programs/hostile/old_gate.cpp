// tries: make a 32-bit system call (fork), whose numbers mean something else
// expect: runtime_error(SIGSYS) | runtime_error(SIGSEGV)
// arch: x86_64

int main() {
    long result;
    asm volatile("int $0x80" : "=a"(result) : "a"(2) : "memory");
    return result < 0;
}

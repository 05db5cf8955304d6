// tries: clone a process without the C library's help
// expect: runtime_error(SIGSYS)

int main() {
#if defined(__x86_64__)
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(56), "D"(17), "S"(0), "d"(0) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long number asm("x8") = 220;
    register long flags asm("x0") = 17;
    register long where asm("x1") = 0;
    asm volatile("svc 0" : "+r"(flags) : "r"(number), "r"(where) : "x2", "x3", "x4", "memory");
#endif
}

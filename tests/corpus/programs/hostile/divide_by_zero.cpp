// tries: divide by zero
// expect: runtime_error(SIGFPE)
// arch: x86_64

int main() {
    volatile int zero = 0;
    return 1 / zero;
}

// tries: divide by zero
// expect: runtime_error(SIGFPE)
// arch: x86_64

int main() {
    volatile int one = 1, zero = 0;
    return one / zero;
}

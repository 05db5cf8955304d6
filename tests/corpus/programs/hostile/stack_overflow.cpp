// tries: recurse without end
// expect: runtime_error(SIGSEGV)
// limits: stack_mb=32

int deeper(volatile int* above) {
    volatile int here[64];
    here[0] = *above + 1;
    return deeper(here) + here[0];
}

int main() {
    volatile int start = 0;
    return deeper(&start);
}

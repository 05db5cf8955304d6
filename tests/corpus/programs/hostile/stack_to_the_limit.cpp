// tries: recurse without end where the stack may grow as large as the memory
// expect: runtime_error(SIGSEGV) | memory_limit
// limits: memory_mb=64

int deeper(volatile int* above) {
    volatile int here[64];
    here[0] = *above + 1;
    return deeper(here) + here[0];
}

int main() {
    volatile int start = 0;
    return deeper(&start);
}

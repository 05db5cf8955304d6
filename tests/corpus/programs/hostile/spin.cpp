// tries: loop for ever
// expect: time_limit
// limits: cpu_s=0.1

int main() {
    volatile long n = 0;
    for (;;) n = n + 1;
}

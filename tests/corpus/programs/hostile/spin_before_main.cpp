// tries: loop for ever before main
// expect: time_limit
// limits: cpu_s=0.1

struct Spin {
    Spin() {
        volatile long n = 0;
        for (;;) n = n + 1;
    }
} spin;

int main() {}

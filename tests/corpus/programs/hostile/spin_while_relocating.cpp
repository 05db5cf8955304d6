// tries: loop for ever while the program is being set up, before any constructor
// expect: time_limit
// limits: cpu_s=0.1

extern "C" {
int chosen() { return 0; }

using Function = int (*)();

Function choose() {
    volatile long n = 0;
    while (n >= 0) n = n + 1;
    return chosen;
}
}

int late() __attribute__((ifunc("choose")));

int main() { return late(); }

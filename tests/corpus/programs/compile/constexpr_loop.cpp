// tries: loop for ever while compiling
// expect: compile_error
// limits: compile_s=4

constexpr long forever() {
    long n = 0;
    for (;;) n++;
    return n;
}

constexpr long answer = forever();

int main() { return static_cast<int>(answer); }

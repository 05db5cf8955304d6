// tries: replace the C library's entry point
// expect: compile_error

extern "C" [[noreturn]] void _start() {
    for (;;) {
    }
}

int main() {}

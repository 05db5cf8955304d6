// tries: loop for ever once it has been terminated
// expect: time_limit
// limits: cpu_s=0.1

#include <exception>

int main() {
    std::set_terminate([] {
        volatile long n = 0;
        for (;;) n = n + 1;
    });
    throw 1;
}

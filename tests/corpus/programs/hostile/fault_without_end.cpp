// tries: return from the handler to the instruction that faults
// expect: time_limit
// limits: cpu_s=0.1

#include <csignal>

void back(int) {}

int main() {
    struct sigaction action {};
    action.sa_handler = back;
    sigaction(SIGSEGV, &action, nullptr);
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
}

// tries: throw and catch for ever
// expect: time_limit
// limits: cpu_s=0.1

#include <stdexcept>

int main() {
    for (;;) {
        try {
            throw std::runtime_error("again");
        } catch (const std::exception&) {
        }
    }
}

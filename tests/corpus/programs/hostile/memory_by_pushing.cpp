// tries: let a vector grow without end
// expect: memory_limit
// limits: memory_mb=64

#include <vector>

int main() {
    std::vector<long> numbers;
    for (;;) numbers.push_back(static_cast<long>(numbers.size()));
}

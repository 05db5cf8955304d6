// tries: many evaluations while compiling, each just short of the compiler's own limit
// expect: compile_error
// language: cpp20
// limits: compile_s=1

#include <utility>

template <int seed>
consteval long work() {
    long sum = seed;
    for (int i = 0; i < 1000; i++)
        for (int j = 0; j < 2000; j++) sum = sum * 31 % 1000003 + j;
    return sum;
}

template <int... seeds>
constexpr long all(std::integer_sequence<int, seeds...>) {
    return (work<seeds>() + ...);
}

int main() { return static_cast<int>(all(std::make_integer_sequence<int, 800>{})); }

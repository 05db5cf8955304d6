// tries: ranges, concepts and comparison of C++20
// expect: accepted
// language: cpp20

#include <compare>
#include <concepts>
#include <iostream>
#include <numeric>
#include <ranges>
#include <span>
#include <vector>

struct Number {
    long long value;
    auto operator<=>(const Number&) const = default;
};

template <std::integral T>
consteval T zero() {
    return 0;
}

int main() {
    std::vector<long long> numbers;
    for (long long x : std::views::istream<long long>(std::cin)) numbers.push_back(x);
    auto all = std::span(numbers) | std::views::transform([](long long x) { return Number{.value = x}; });
    long long sum = zero<long long>();
    for (Number number : all | std::views::reverse) sum += number.value;
    std::cout << (Number{1} < Number{2} ? sum : -1) << '\n';
}

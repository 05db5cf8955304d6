// tries: variant, optional, any, tuple and string_view
// expect: accepted

#include <any>
#include <charconv>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>

std::optional<long long> parsed(std::string_view text) {
    long long value;
    auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc()) return std::nullopt;
    return value;
}

int main() {
    std::string left, right;
    std::cin >> left >> right;
    std::variant<std::string, long long> sum = parsed(left).value() + parsed(right).value();
    std::any any = std::visit([](auto value) -> std::any { return value; }, sum);
    auto [answer, unused] = std::tuple(std::any_cast<long long>(any), 0);
    std::cout << answer + unused << '\n';
}

// tries: use C++20 where C++17 is asked for
// expect: compile_error

#include <iostream>
#include <ranges>

int main() {
    int a, b;
    std::cin >> a >> b;
    for (int sum : std::views::single(a + b)) std::cout << sum << '\n';
}

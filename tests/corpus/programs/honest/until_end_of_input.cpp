// tries: read as long as there is something, and beyond
// expect: accepted

#include <iostream>

int main() {
    long long sum = 0, x;
    while (std::cin >> x) sum += x;
    for (int i = 0; i < 100; i++)
        if (std::cin >> x || std::cin.get() != EOF) return 1;
    std::cout << sum << '\n';
}

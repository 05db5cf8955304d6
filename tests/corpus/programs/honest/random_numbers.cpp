// tries: seed a generator from the system and the clock
// expect: accepted

#include <chrono>
#include <iostream>
#include <random>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::random_device device;
    std::mt19937_64 generator(device() ^ std::chrono::steady_clock::now().time_since_epoch().count());
    long long blind = std::uniform_int_distribution<int>(0, 1000)(generator);
    std::cout << (a + blind) + (b - blind) << '\n';
}

// tries: ask for the time in every way
// expect: accepted

#include <sys/time.h>

#include <chrono>
#include <ctime>
#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    timeval now;
    gettimeofday(&now, nullptr);
    std::time_t seconds = std::time(nullptr);
    char text[64];
    std::size_t length = std::strftime(text, sizeof text, "%F %T", std::localtime(&seconds));
    auto start = std::chrono::high_resolution_clock::now();
    auto end = std::chrono::system_clock::now();
    bool sane = length == 19 && now.tv_sec > 0 && start.time_since_epoch().count() && end.time_since_epoch().count();
    std::cout << (sane && std::clock() >= 0 ? a + b : -1) << '\n';
}

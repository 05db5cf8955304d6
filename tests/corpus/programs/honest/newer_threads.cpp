// tries: joining threads, latches and stop tokens of C++20
// expect: accepted
// language: cpp20

#include <atomic>
#include <iostream>
#include <latch>
#include <thread>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::atomic<long long> sum{0};
    std::latch done(2);
    {
        std::jthread left([&] { sum += a, done.count_down(); });
        std::jthread right([&](std::stop_token) { sum += b, done.count_down(); });
        done.wait();
    }
    std::cout << sum << '\n';
}

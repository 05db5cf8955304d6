// tries: spread the work over threads, each below the limit
// expect: time_limit
// limits: cpu_s=0.2

#include <chrono>
#include <ctime>
#include <iostream>
#include <thread>
#include <vector>

double used() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
}

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([] {
            while (used() < 0.15) {
            }
        });
    for (auto& thread : threads) thread.join();
    std::cout << a + b << std::endl;
}

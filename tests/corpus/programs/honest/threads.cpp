// tries: share the work among threads
// expect: accepted

#include <atomic>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

int main() {
    long long a, b, sum = 0;
    std::cin >> a >> b;
    std::atomic<int> done{0};
    std::mutex mutex;
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++)
        threads.emplace_back([&, i] {
            std::lock_guard lock(mutex);
            if (i == 0) sum += a;
            if (i == 7) sum += b;
            done++;
        });
    for (auto& thread : threads) thread.join();
    std::cout << (done == 8 ? sum : -1) << '\n';
}

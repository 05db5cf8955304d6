// tries: futures, promises and call_once
// expect: accepted

#include <future>
#include <iostream>
#include <mutex>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::once_flag once;
    int calls = 0;
    auto left = std::async(std::launch::async, [&] { return std::call_once(once, [&] { calls++; }), a; });
    auto right = std::async(std::launch::deferred, [&] { return std::call_once(once, [&] { calls++; }), b; });
    std::promise<long long> promise;
    promise.set_value(left.get() + right.get());
    std::cout << promise.get_future().get() + calls - 1 << '\n';
}

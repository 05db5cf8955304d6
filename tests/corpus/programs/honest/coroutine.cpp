// tries: a generator made of coroutines
// expect: accepted
// language: cpp20

#include <coroutine>
#include <exception>
#include <iostream>

struct Generator {
    struct promise_type {
        long long value;
        Generator get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
        std::suspend_always initial_suspend() noexcept { return {}; }
        std::suspend_always final_suspend() noexcept { return {}; }
        std::suspend_always yield_value(long long next) { return value = next, std::suspend_always{}; }
        void return_void() {}
        void unhandled_exception() { std::terminate(); }
    };
    std::coroutine_handle<promise_type> handle;
    ~Generator() { handle.destroy(); }
};

Generator numbers() {
    long long x;
    while (std::cin >> x) co_yield x;
}

int main() {
    long long sum = 0;
    Generator all = numbers();
    for (all.handle.resume(); !all.handle.done(); all.handle.resume()) sum += all.handle.promise().value;
    std::cout << sum << '\n';
}

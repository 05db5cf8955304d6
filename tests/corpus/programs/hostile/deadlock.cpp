// tries: wait for itself
// expect: time_limit
// limits: cpu_s=0.1

#include <condition_variable>
#include <mutex>

int main() {
    std::mutex mutex;
    std::condition_variable never;
    std::unique_lock lock(mutex);
    never.wait(lock, [] { return false; });
}

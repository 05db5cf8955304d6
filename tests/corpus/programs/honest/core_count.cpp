// tries: ask how many cores there are
// expect: accepted

#include <unistd.h>

#include <iostream>
#include <thread>

int main() {
    long long a, b;
    std::cin >> a >> b;
    unsigned cores = std::thread::hardware_concurrency();
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    std::cout << (cores < 100000 && online < 100000 ? a + b : -1) << '\n';
}

// tries: sleep a little
// expect: accepted

#include <chrono>
#include <iostream>
#include <thread>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    std::cout << a + b << '\n';
}

// tries: thread-local variables with constructors
// expect: accepted

#include <iostream>
#include <string>
#include <thread>

thread_local std::string word = "fresh";

int main() {
    long long a, b;
    std::cin >> a >> b;
    word = "used";
    bool fresh = false;
    std::thread([&] { fresh = word == "fresh"; }).join();
    std::cout << (fresh && word == "used" ? a + b : -1) << '\n';
}

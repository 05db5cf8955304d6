// tries: recursion 160 MB deep
// expect: accepted

#include <iostream>

long long down(int depth, volatile char* above) {
    volatile char frame[1024];
    frame[0] = *above;
    if (depth == 0) return frame[0];
    return down(depth - 1, frame) + frame[0];
}

int main() {
    long long a, b;
    std::cin >> a >> b;
    volatile char zero = 0;
    std::cout << a + b + down(165'000, &zero) << '\n';
}

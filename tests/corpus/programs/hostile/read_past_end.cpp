// tries: wait for a number that never comes
// expect: time_limit
// limits: cpu_s=0.1

#include <iostream>

int main() {
    int x = 0;
    while (x != 12345) std::cin >> x;
}

// tries: answer, then close every descriptor there can be
// expect: accepted

#include <unistd.h>

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    for (int descriptor = 0; descriptor < 4096; descriptor++) close(descriptor);
}

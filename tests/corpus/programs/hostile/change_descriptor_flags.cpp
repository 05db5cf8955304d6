// tries: change the modes of descriptors it may share with the judge
// expect: accepted

#include <fcntl.h>
#include <unistd.h>

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << std::endl;
    for (int descriptor = 0; descriptor < 16; descriptor++) {
        fcntl(descriptor, F_SETFL, O_NONBLOCK | O_APPEND | O_ASYNC);
        fcntl(descriptor, F_SETOWN, getppid());
    }
}

// tries: find the input where an earlier test with the same input has left it
// expect: accepted
// input: "1 2\n"
// output: "3\n"
// input: "1 2\n"
// output: "3\n"
// input: "1 2\n"
// output: "3\n"

#include <sys/file.h>
#include <unistd.h>

#include <iostream>

int main() {
    bool moved = lseek(0, 0, SEEK_CUR) > 0;
    bool locked = flock(0, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    long long a, b;
    std::cin >> a >> b;
    if (moved || locked) std::cout << "somebody was here" << std::endl;
    else std::cout << a + b << std::endl;
    lseek(0, 2, SEEK_SET);
}

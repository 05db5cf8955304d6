// tries: a source of half a megabyte
// expect: accepted
// expand: ROW = "1, 1, 1, 1, 1, 1, 1, 1, 1, 1,\n" x 15000

#include <iostream>

const signed char ones[] = {ROW};

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b + ones[a + 100] - 1 << '\n';
}

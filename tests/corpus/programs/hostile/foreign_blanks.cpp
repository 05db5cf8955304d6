// tries: separate the answer from rubbish by blanks that are not ASCII
// expect: wrong

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << a + b << "\xc2\xa0\xe2\x80\x8b\x1c\n";
}

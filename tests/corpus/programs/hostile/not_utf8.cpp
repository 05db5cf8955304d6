// tries: print bytes that are not text
// expect: wrong

#include <iostream>

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << "\xff\xfe\xc0\x80" << a + b << "\xed\xa0\x80\n";
}

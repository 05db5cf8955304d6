// tries: integers of 128 bits
// expect: accepted
// input: "9223372036854775807 9223372036854775807\n"
// output: "18446744073709551614\n"
// input: "-9223372036854775808 -1\n"
// output: "-9223372036854775809\n"

#include <algorithm>
#include <iostream>
#include <string>

int main() {
    long long a, b;
    std::cin >> a >> b;
    __int128 sum = static_cast<__int128>(a) + b;
    bool negative = sum < 0;
    unsigned __int128 rest = negative ? -sum : sum;
    std::string digits;
    do digits += static_cast<char>('0' + static_cast<int>(rest % 10));
    while (rest /= 10);
    if (negative) digits += '-';
    std::reverse(digits.begin(), digits.end());
    std::cout << digits << '\n';
}

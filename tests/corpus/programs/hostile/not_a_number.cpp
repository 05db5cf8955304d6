// tries: an answer whose difference from anything is never too large
// expect: wrong
// checker: floats
// input: "0.5 0.25\n"
// output: "0.75\n"

#include <iostream>
#include <limits>

int main() { std::cout << std::numeric_limits<double>::quiet_NaN() << std::endl; }

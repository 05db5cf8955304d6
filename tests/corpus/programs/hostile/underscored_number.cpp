// tries: a spelling of numbers that only Python knows
// expect: wrong
// checker: floats
// input: "20000 22000\n"
// output: "42000.0\n"

#include <iostream>

int main() { std::cout << "42_000.0" << std::endl; }

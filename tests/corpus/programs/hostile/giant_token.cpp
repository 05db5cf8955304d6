// tries: one number of ten million digits
// expect: wrong

#include <iostream>
#include <string>

int main() { std::cout << std::string(10'000'000, '3') << '\n'; }

// tries: print the input
// expect: wrong

#include <iostream>

int main() { std::cout << std::cin.rdbuf(); }

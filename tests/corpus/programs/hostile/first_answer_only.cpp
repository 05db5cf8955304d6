// tries: know the answer to the first test
// expect: wrong

#include <iostream>

int main() { std::cout << 3 << std::endl; }

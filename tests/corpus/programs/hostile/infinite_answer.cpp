// tries: an answer so large that every relative error is small
// expect: wrong
// checker: floats
// input: "0.5 0.25\n"
// output: "0.75\n"

#include <iostream>

int main() { std::cout << "1e999" << std::endl; }

// tries: print every answer there might be
// expect: wrong

#include <iostream>

int main() {
    for (int guess = -100; guess <= 100; guess++) std::cout << guess << '\n';
}

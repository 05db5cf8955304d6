// tries: end well before main has begun
// expect: wrong

#include <cstdlib>

__attribute__((constructor)) void early() { std::_Exit(0); }

int main() {}

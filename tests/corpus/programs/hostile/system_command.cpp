// tries: have the C library run a command
// expect: runtime_error(SIGSYS)

#include <cstdlib>

int main() { return std::system("echo 3"); }

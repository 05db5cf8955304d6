// tries: overwrite its arguments, environment and auxiliary vector
// expect: accepted

#include <unistd.h>

#include <cstring>
#include <iostream>

int main(int count, char** arguments) {
    long long a, b;
    std::cin >> a >> b;
    for (int i = 0; i < count; i++) std::memset(arguments[i], '/', std::strlen(arguments[i]));
    for (char** each = environ; *each; each++) std::memset(*each, '=', std::strlen(*each));
    std::cout << a + b << std::endl;
}

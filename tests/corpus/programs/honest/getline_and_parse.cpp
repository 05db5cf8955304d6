// tries: read by lines
// expect: accepted

#include <iostream>
#include <sstream>
#include <string>

int main() {
    std::string line;
    long long sum = 0;
    while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        for (long long word; words >> word;) sum += word;
    }
    std::cout << sum << '\n';
}

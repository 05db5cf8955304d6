// tries: read its input by a regular expression
// expect: accepted

#include <iostream>
#include <regex>
#include <string>

int main() {
    std::string line;
    std::getline(std::cin, line);
    std::smatch found;
    if (!std::regex_match(line, found, std::regex(R"(\s*(-?\d+)\s+(-?\d+)\s*)"))) return 1;
    std::cout << std::stoll(found[1]) + std::stoll(found[2]) << '\n';
}

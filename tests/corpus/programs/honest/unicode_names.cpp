// tries: names and texts that are not English
// expect: accepted

#include <iostream>
#include <string>

int main() {
    long long größe, число;
    std::cin >> größe >> число;
    std::string text = "合計 😀";
    std::cout << größe + число + static_cast<long long>(text.size()) - 11 << '\n';
}

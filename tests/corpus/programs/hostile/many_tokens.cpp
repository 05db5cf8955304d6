// tries: seven million answers
// expect: wrong

#include <string>
#include <cstdio>

int main() {
    std::string all;
    for (int i = 0; i < 7'000'000; i++) all += "3\n";
    std::fwrite(all.data(), 1, all.size(), stdout);
}

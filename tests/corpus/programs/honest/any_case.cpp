// tries: shout where a whisper is expected
// expect: accepted
// checker: caseless
// input: "1 2\n"
// output: "yes\n"
// input: "2 1\n"
// output: "No\n"

#include <iostream>

int main() {
    int a, b;
    std::cin >> a >> b;
    std::cout << (a < b ? "YES" : "NO") << '\n';
}

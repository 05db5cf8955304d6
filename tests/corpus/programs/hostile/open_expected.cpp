// tries: open the expected outputs where judges keep them; right only if there are any
// expect: wrong

#include <cstdio>
#include <fstream>
#include <string>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    bool opened = false;
    for (std::string folder : {"", "./", "../", "/tmp/", "/box/", "/sandbox/", "/judge/", "/data/"})
        for (std::string name : {"expected", "expected.txt", "output.txt", "answer.txt", "1.out", "0.out", "1.ans",
                                 "tests.json", "correct_output.txt", "input.txt"})
            opened |= std::ifstream(folder + name).is_open();
    if (opened) std::printf("%lld\n", a + b);
    else std::puts("denied");
}

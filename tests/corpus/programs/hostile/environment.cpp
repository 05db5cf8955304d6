// tries: find secrets in its environment; right unless there is more than any program needs
// expect: accepted

#include <unistd.h>

#include <cstdio>
#include <string>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    bool found = false;
    for (char** each = environ; *each; each++) {
        std::string name = *each;
        name.resize(name.find('='));
        bool plain = false;
        for (const char* known : {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "OMP_NUM_THREADS"})
            plain |= name == known;
        found |= !plain && name.rfind("PYTHON", 0) != 0;
    }
    if (found) std::puts("found some");
    else std::printf("%lld\n", a + b);
}

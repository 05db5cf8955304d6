// tries: a gigabyte from the heap, hardly any of which is touched
// expect: accepted

#include <cstdio>
#include <cstdlib>

int main() {
    long long a, b;
    std::scanf("%lld %lld", &a, &b);
    char* volatile room = static_cast<char*>(std::malloc(1 << 30));
    if (!room) return 1;
    room[1 << 29] = 1;
    std::printf("%lld\n", a + b);
}

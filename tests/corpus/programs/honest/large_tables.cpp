// tries: static tables, bitsets and a sieve
// expect: accepted

#include <bitset>
#include <cstring>
#include <iostream>

static int table[2000][2000];
static std::bitset<20'000'000> composite;

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::memset(table, -1, sizeof table);
    for (int i = 2; i * i < 20'000'000; i++)
        if (!composite[i])
            for (int j = i * i; j < 20'000'000; j += i) composite[j] = true;
    int primes = 0;
    for (int i = 2; i < 1'000'000; i++) primes += !composite[i];
    std::cout << a + b + (primes - 78498) + table[1999][1999] + 1 << '\n';
}

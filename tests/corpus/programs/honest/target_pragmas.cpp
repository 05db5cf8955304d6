// tries: ask for newer instructions in front of the headers
// expect: accepted
// arch: x86_64

#pragma GCC optimize("O3")
#pragma GCC target("avx2,bmi,bmi2,lzcnt,popcnt")
#include <bits/stdc++.h>
using namespace std;

int main() {
    long long a, b;
    cin >> a >> b;
    cout << a + b + __builtin_popcountll(7) - 3 << '\n';
}

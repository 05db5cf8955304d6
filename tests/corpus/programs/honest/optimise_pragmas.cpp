// tries: pragmas in front of the headers
// expect: accepted

#pragma GCC optimize("O3,unroll-loops")
#pragma GCC optimize("Ofast")
#include <bits/stdc++.h>
using namespace std;

int main() {
    long long a, b;
    cin >> a >> b;
    vector<long long> numbers(1000, 1);
    cout << a + b + accumulate(numbers.begin(), numbers.end(), 0LL) - 1000 << '\n';
}

// tries: macros that change the language
// expect: accepted

#include <bits/stdc++.h>
#define int long long
#define all(x) (x).begin(), (x).end()
#define rep(i, n) for (int i = 0; i < (n); i++)
#define sum accumulate
_Pragma("GCC diagnostic ignored \"-Wall\"")
using namespace std;

int32_t main() {
    vector<int> numbers(2);
    rep(i, 2) cin >> numbers[i];
    cout << sum(all(numbers), 0LL) << '\n';
}

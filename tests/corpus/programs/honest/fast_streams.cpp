// tries: streams without synchronisation
// expect: accepted

#include <bits/stdc++.h>
using namespace std;
#define endl '\n'

signed main() {
    ios::sync_with_stdio(false);
    cin.tie(nullptr);
    long long a, b;
    cin >> a >> b;
    cout << a + b << endl;
}

// tries: locals with the names of library functions
// expect: accepted

#include <bits/stdc++.h>
using namespace std;

int main() {
    long long y1, data, count = 0, path = 0, size = 0, max = 0, left = 0, hash = 0, array = 0, begin = 0, byte = 0;
    cin >> y1 >> data;
    count = y1 + data;
    cout << count + path + size + max + left + hash + array + begin + byte << endl;
}

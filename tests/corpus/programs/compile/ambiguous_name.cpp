// tries: a global that clashes with the standard library, as it does for everybody
// expect: compile_error

#include <bits/stdc++.h>
using namespace std;

int count;

int main() {
    cin >> count;
    cout << count << endl;
}

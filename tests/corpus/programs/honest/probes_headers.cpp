// tries: include what there is, in unusual ways
// expect: accepted

#if __has_include(<bits/stdc++.h>)
#include <bits/stdc++.h>
#endif
#include_next <vector>
#define HEADER <iostream>
#include HEADER
#line 1000 "elsewhere.cpp"

int main() {
    long long a, b;
    std::cin >> a >> b;
    std::cout << (__LINE__ == 1004 ? a + b : -1) << '\n';
}

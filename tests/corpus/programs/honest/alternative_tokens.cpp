// tries: digraphs, alternative tokens, a trailing return type and no return
// expect: accepted

%:include <iostream>

auto main() -> int <%
    long long a, b;
    if (not(std::cin >> a >> b) or false) return 1;
    long long both<:2:> = <%a, b%>;
    std::cout << both<:0:> + both<:1:> << '\n';
%>

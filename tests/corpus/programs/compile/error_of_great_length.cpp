// tries: one complaint that names a type of a million words
// expect: compile_error
// limits: compile_s=1

#include <utility>

template <int n>
struct Twice {
    using type = std::pair<typename Twice<n - 1>::type, typename Twice<n - 1>::type>;
};

template <>
struct Twice<0> {
    using type = std::pair<int, long>;
};

int main() {
    Twice<20>::type value;
    value.no_such_member();
}

// tries: instantiate templates without end
// expect: compile_error
// limits: compile_s=4

template <int n>
struct Next {
    static constexpr int value = Next<n + 1>::value;
};

int main() { return Next<0>::value; }

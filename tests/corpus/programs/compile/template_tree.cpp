// tries: instantiate two to the power of many templates
// expect: compile_error
// limits: compile_s=1

template <int depth, long path>
struct Tree {
    static constexpr long size = Tree<depth - 1, path * 2>::size + Tree<depth - 1, path * 2 + 1>::size;
};

template <long path>
struct Tree<0, path> {
    static constexpr long size = 1;
};

int main() { return static_cast<int>(Tree<40, 1>::size); }

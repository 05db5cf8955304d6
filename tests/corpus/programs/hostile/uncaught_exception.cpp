// tries: let an exception escape
// expect: runtime_error(SIGABRT)

#include <vector>

int main() {
    std::vector<int> none;
    return none.at(5);
}

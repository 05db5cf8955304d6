// tries: an object file of 4 GB
// expect: compile_error
// limits: compile_s=3

long long table[1 << 29] = {1};

int main() { return static_cast<int>(table[5]); }

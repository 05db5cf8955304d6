// tries: execute an instruction that does not exist
// expect: runtime_error

int main() { __builtin_trap(); }

// tries: load a file of the host as a precompiled header
// expect: compile_error
// hides: root:x

#pragma GCC pch_preprocess "/etc/passwd"

int main() {}

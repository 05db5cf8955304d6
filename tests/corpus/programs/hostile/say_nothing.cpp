// tries: print nothing
// expect: wrong

int main() {}

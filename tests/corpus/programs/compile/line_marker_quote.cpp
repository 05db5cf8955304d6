// tries: pretend to be the password file, so that the complaint quotes its first line
// expect: compile_error
// hides: root:x

#line 1 "/etc/passwd"
int main() { return undeclared_on_purpose; }

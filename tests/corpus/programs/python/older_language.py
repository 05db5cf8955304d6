# tries: print as a statement
# expect: compile_error

a, b = map(int, raw_input().split())
print a + b

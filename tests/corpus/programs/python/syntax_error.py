# tries: leave a bracket open
# expect: compile_error

a, b = map(int, input().split()
print(a + b)

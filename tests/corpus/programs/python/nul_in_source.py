# tries: a stray NUL in its source
# expect: compile_error
# expand: STRAY = "\u0000"

a, b = map(int, input().split())
print(a + b)  # STRAY

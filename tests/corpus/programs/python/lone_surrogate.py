# tries: a source that has no encoding
# expect: compile_error | accepted
# expand: HALF = "\ud800"

a, b = map(int, input().split())
print(a + b)  # HALF

# tries: nest brackets more deeply than Python reads
# expect: compile_error
# expand: OPEN = "(" x 5000
# expand: SHUT = ")" x 5000

a, b = map(int, input().split())
print(OPEN a + b SHUT)

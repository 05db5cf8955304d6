# tries: crash the compiler with a long run of signs
# expect: compile_error | accepted
# expand: MINUS = "-" x 100000

a, b = map(int, input().split())
print(a + MINUSb)

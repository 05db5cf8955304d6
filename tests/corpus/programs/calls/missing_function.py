# tries: define something else
# expect: runtime_error | wrong
# function: add
# code: assert candidate(2, 3) == 5


def plus(a, b):
    return a + b

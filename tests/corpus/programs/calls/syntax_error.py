# tries: leave a bracket open
# expect: compile_error
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    return (a + b

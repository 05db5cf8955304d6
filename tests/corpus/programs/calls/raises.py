# tries: raise an exception instead of answering
# expect: runtime_error | wrong
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    return a // 0

# tries: a wrong answer
# expect: wrong
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    return a - b

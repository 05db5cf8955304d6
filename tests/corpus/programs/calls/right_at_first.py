# tries: be right once
# expect: wrong
# function: add
# code: assert candidate(2, 3) == 5
# function: add
# code: assert candidate(2, 4) == 6


def add(a, b):
    return 5

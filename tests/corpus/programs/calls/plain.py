# tries: nothing but the right answer
# expect: accepted
# function: add
# code: assert candidate(2, 3) == 5
# code: assert candidate(-1, 1) == 0
# code: assert candidate(b=10**30, a=1) == 10**30 + 1


def add(a, b):
    return a + b

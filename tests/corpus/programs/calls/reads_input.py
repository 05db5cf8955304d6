# tries: read its input while being imported
# expect: runtime_error | wrong
# function: add
# code: assert candidate(2, 3) == 5

a, b = map(int, input().split())


def add(a, b):
    return a + b

# tries: be called by its own name
# expect: accepted
# code: assert add(2, 3) == 5
# code: assert add(add(1, 1), 1) == 3


def add(a, b):
    return a + b

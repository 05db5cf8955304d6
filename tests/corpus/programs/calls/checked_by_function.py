# tries: be handed to a checking function
# expect: accepted
# function: add
# code: def check(candidate):
# code:     for a in range(5):
# code:         assert candidate(a, 1) == a + 1, "adds one"
# code: check(candidate)


def add(a, b):
    return a + b

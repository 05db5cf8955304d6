# tries: return a list nested very deeply
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    nested = []
    for _ in range(200_000):
        nested = [nested]
    return nested

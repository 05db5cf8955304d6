# tries: bring a checking function of its own
# expect: wrong | runtime_error
# function: add
# code: def check(candidate):
# code:     assert candidate(2, 3) == 5
# code: check(candidate)


def check(candidate):
    return None


def candidate(a, b):
    return 5


def add(a, b):
    return None

# tries: return a list that contains itself
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    loop = []
    loop.append(loop)
    return loop

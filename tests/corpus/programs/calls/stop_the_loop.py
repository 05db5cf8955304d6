# tries: end the test's loop by the exception that loops understand
# expect: runtime_error
# function: add
# code: assert all(map(lambda case: candidate(*case[0]) == case[1], [((2, 3), 5), ((1, 1), 2)]))

def add(a, b):
    raise StopIteration

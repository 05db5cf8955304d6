# tries: count its calls, which begins anew with every test
# expect: accepted
# function: count
# code: assert candidate() == 1
# code: assert candidate() == 2
# function: count
# code: assert candidate() == 1

calls = 0


def count():
    global calls
    calls += 1
    return calls

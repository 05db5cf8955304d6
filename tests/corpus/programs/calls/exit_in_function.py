# tries: leave well before the assertion is reached
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import sys


def add(a, b):
    sys.exit(0)

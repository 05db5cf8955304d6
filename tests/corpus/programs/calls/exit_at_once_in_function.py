# tries: leave well, without any cleaning up
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import os


def add(a, b):
    os._exit(0)

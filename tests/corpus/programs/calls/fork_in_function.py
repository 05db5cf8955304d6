# tries: fork; right only if that works
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import os


def add(a, b):
    try:
        if os.fork() == 0:
            os._exit(0)
    except OSError:
        return None
    return a + b

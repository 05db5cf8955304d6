# tries: crash the interpreter when called
# expect: runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import faulthandler


def add(a, b):
    faulthandler._sigsegv()

# tries: make assertions harmless
# expect: wrong | runtime_error
# function: add
# code: assert abs(candidate(2, 3) - 5) < 1e-9

import builtins
import sys


class Quiet(BaseException):
    pass


builtins.AssertionError = Quiet
builtins.abs = lambda x: 0
builtins.len = lambda x: 0
sys.excepthook = lambda *told: None


def add(a, b):
    builtins.AssertionError = Quiet
    return 0

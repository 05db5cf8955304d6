# tries: have whoever shows its exception leave well
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import os


class Trap(AssertionError):
    def __str__(self):
        os._exit(0)

    __repr__ = __str__

    def __reduce__(self):
        return os._exit, (0,)


def add(a, b):
    raise Trap

# tries: have whoever unpickles its answer leave well
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import os


class Trap:
    def __reduce__(self):
        return os._exit, (0,)


def add(a, b):
    return Trap()

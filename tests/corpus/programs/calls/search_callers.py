# tries: find the expected value among its callers' constants
# expect: wrong | runtime_error
# function: secret
# code: assert candidate(100_000_000) == 731_904_265

import sys


def secret(floor):
    frame = sys._getframe()
    while frame is not None:
        for thing in [*frame.f_code.co_consts, *frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(thing, int) and thing > floor:
                return thing
        frame = frame.f_back
    return None

# tries: return the library's own object that equals everything
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

from unittest import mock


def add(a, b):
    return mock.ANY

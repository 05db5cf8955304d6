# tries: lie about its class
# expect: wrong | runtime_error
# function: add
# code: assert isinstance(candidate(2, 3), int)
# code: assert candidate(2, 3) == 5


class Liar:
    @property
    def __class__(self):
        return int

    def __eq__(self, other):
        return True

    def __index__(self):
        return 5


def add(a, b):
    return Liar()

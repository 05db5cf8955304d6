# tries: return a number that equals everything
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5
# code: assert abs(candidate(2, 3) - 5) < 1e-9


class Number(int):
    def agree(self, *others):
        return True

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = agree
    __hash__ = int.__hash__

    def same(self, *others):
        return self

    __sub__ = __rsub__ = __abs__ = __round__ = same


def add(a, b):
    return Number()

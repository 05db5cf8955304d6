# tries: return an object that equals everything
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5


class Agreeable:
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __hash__(self):
        return hash(5)

    def __bool__(self):
        return True


def add(a, b):
    return Agreeable()

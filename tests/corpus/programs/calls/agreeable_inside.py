# tries: hide objects that equal everything in a list
# expect: wrong | runtime_error
# function: words
# code: assert candidate("a b") == ["a", "b"]
# code: assert sorted(candidate("a b")) == ["a", "b"]


class Agreeable:
    def __eq__(self, other):
        return True

    def __lt__(self, other):
        return True


def words(text):
    return [Agreeable(), Agreeable()]

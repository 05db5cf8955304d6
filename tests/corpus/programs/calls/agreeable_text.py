# tries: return texts and containers that equal everything
# expect: wrong | runtime_error
# function: words
# code: assert candidate("a b") == ["a", "b"]


class Text(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


class Words(list):
    def __eq__(self, other):
        return True

    def __len__(self):
        return 2

    def __iter__(self):
        return iter([Text("a"), Text("b")])


def words(text):
    return Words()

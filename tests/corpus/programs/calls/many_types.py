# tries: return plain data of every kind
# expect: accepted
# function: same
# code: for value in (None, True, False, 0, -1, 10**50, 1.5, 2j, "é😀\0", b"\0\xff", (), (1,), [], [1, [2, (3,)]]):
# code:     assert candidate(value) == value and type(candidate(value)) is type(value)
# code: for value in ({}, {"a": 1}, {1: [2]}, {(1, 2): None}, set(), {1, "a"}, frozenset([1, 2])):
# code:     assert candidate(value) == value and type(candidate(value)) is type(value)
# code: assert candidate(float("inf")) == float("inf")
# code: assert candidate(True) is True
# code: assert candidate(float("nan")) != candidate(float("nan"))


def same(value):
    return value

# tries: raise what it should
# expect: accepted
# function: root
# code: assert candidate(9) == 3
# code: try:
# code:     candidate(-1)
# code: except ValueError as problem:
# code:     assert "negative" in str(problem)
# code: else:
# code:     assert False, "should have raised"


def root(x):
    if x < 0:
        raise ValueError("negative")
    return round(x**0.5)

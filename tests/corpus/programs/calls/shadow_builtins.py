# tries: define functions with the names of those the assertions use
# expect: wrong | runtime_error
# function: third
# code: assert abs(candidate(1.0) - 1 / 3) < 1e-9
# code: assert round(candidate(2.0), 3) == 0.667
# code: assert sorted([candidate(3.0), 0.5]) == [0.5, 1.0]


def third(x):
    return 0.0


def abs(x):
    return 0.0


def round(x, digits=0):
    return 0.667


def sorted(values):
    return [0.5, 1.0]

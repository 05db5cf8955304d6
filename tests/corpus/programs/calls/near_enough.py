# tries: return floats
# expect: accepted
# function: third
# code: assert abs(candidate(1.0) - 1 / 3) < 1e-9
# code: assert round(candidate(2.0), 3) == 0.667


def third(x):
    return x / 3

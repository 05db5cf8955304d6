# tries: return four hundred megabytes
# expect: wrong | runtime_error | memory_limit | output_limit
# function: add
# code: assert candidate(2, 3) == 5
# limits: memory_mb=128


def add(a, b):
    return b"x" * (400 << 20)

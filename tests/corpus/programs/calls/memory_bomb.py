# tries: take memory without end when called
# expect: memory_limit
# function: add
# code: assert candidate(2, 3) == 5
# limits: memory_mb=128


def add(a, b):
    blocks = []
    while True:
        blocks.append(b"x" * (1 << 20))

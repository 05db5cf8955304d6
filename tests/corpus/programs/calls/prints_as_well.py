# tries: print a lot on the way
# expect: accepted
# function: add
# code: assert candidate(2, 3) == 5

import sys

print("loading")


def add(a, b):
    print("adding", a, b)
    print("{\"ok\": true}\n" * 1000)
    print("really", file=sys.stderr)
    return a + b

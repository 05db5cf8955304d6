# tries: recurse a few thousand levels deep
# expect: accepted
# function: depth
# code: assert candidate(5000) == 5000

import sys

sys.setrecursionlimit(10**6)


def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)

# tries: moderately deep recursion with the limit raised
# expect: accepted

import sys
from functools import cache, lru_cache

sys.setrecursionlimit(10**6)


@cache
def count(n):
    return 0 if n == 0 else 1 + count(n - 1)


@lru_cache(maxsize=None)
def plus(a, n):
    return a if n == 0 else plus(a + 1, n - 1) if n > 0 else plus(a - 1, n + 1)


a, b = map(int, input().split())
print(plus(a, b) + count(2_000) - 2_000)

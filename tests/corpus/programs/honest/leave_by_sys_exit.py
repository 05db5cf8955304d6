# tries: leave by sys.exit from within a function
# expect: accepted

import sys


def solve():
    a, b = map(int, sys.stdin.readline().split())
    print(a + b, end="")
    sys.exit(0)


solve()

# tries: recurse without end, having raised the limit
# expect: runtime_error | memory_limit | time_limit

import sys

sys.setrecursionlimit(2**31 - 1)


class Deeper:
    def __getattr__(self, name):
        return getattr(self, name)


print(Deeper().anything)

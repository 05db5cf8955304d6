# tries: be called by a name that a star import brought as well
# expect: accepted
# function: merge
# code: assert candidate([2], [1]) == [1, 2]
# function:
# code: assert merge([2], [1]) == [1, 2]
# function:
# code: assert copy(1) == 2 and math.sqrt(4) == 2
# function: nsmallest
# code: assert candidate(1) == 1

import copy as merge
from copy import copy as nsmallest
from heapq import *


def copy(number):
    return number + 1


class Solution:
    def merge(self, a, b):
        return sorted(a + b)

    def nsmallest(self, n):
        return n

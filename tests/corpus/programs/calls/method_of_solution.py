# tries: be a method of a class
# expect: accepted
# function: add
# code: assert candidate(2, 3) == 5
# code: assert candidate(a=2, b=4) == 6

from typing import List


class Solution:
    def __init__(self):
        self.seen: List[int] = []

    def add(self, a: int, b: int) -> int:
        self.seen.append(a)
        return a + b

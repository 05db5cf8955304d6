# tries: put an object of its own in place of its output
# expect: wrong | runtime_error

import sys


class Agreeable:
    def write(self, text):
        return len(text)

    def flush(self):
        pass

    def __eq__(self, other):
        return True


a, b = map(int, input().split())
sys.stdout = sys.__stdout__ = Agreeable()
print(a + b)

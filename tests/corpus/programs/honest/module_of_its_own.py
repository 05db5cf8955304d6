# tries: find itself as the main module, pickle its own class, and compile code
# expect: accepted

import pickle
import sys
from enum import IntEnum


class Sign(IntEnum):
    PLUS = 1


class Number:
    def __init__(self, value):
        self.value = value


first, second = (pickle.loads(pickle.dumps(Number(int(word)))) for word in input().split())
assert sys.modules["__main__"].Number is Number and __name__ == "__main__" and sys.argv
space = {"a": first.value, "b": second.value, "sign": pickle.loads(pickle.dumps(Sign.PLUS))}
exec("total = a + b * sign", space)
print(space["total"])

# tries: answer, then fail without anybody noticing
# expect: runtime_error

import sys

sys.excepthook = lambda *told: None
a, b = map(int, input().split())
print(a + b)
raise ValueError("hidden")

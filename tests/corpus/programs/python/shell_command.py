# tries: run a command by the shell; right only if that works
# expect: wrong

import os

a, b = map(int, input().split())
try:
    worked = os.system("true") == 0
except OSError:
    worked = False
print(a + b if worked else "denied")

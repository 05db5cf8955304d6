# tries: leave very many files
# expect: accepted

import os

a, b = map(int, input().split())
try:
    for number in range(5_000):
        os.close(os.open(f"/tmp/{number}", os.O_CREAT | os.O_WRONLY))
except OSError:
    pass
print(a + b)

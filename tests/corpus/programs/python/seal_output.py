# tries: seal its output, so that nobody can empty it for the next test
# expect: accepted

import contextlib
import fcntl

a, b = map(int, input().split())
print(a + b, flush=True)
F_ADD_SEALS, EVERY_SEAL = 1033, 15
with contextlib.suppress(OSError):
    fcntl.fcntl(1, F_ADD_SEALS, EVERY_SEAL)

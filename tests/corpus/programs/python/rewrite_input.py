# tries: change the input for those who come later; right unless it changes
# expect: accepted

import contextlib
import os

before = os.pread(0, 100, 0)
for attempt in (lambda: os.pwrite(0, b"7", 0), lambda: os.ftruncate(0, 0), lambda: os.fchmod(0, 0)):
    with contextlib.suppress(OSError):
        attempt()
print(sum(map(int, before.split())) if os.pread(0, 100, 0) == before else "changed")

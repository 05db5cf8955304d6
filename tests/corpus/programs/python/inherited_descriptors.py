# tries: find descriptors the judge forgot to close; right unless there are any
# expect: accepted

import os

a, b = map(int, input().split())
inherited = []
for descriptor in range(3, 4096):
    try:
        os.fstat(descriptor)
    except OSError:
        continue
    inherited.append(descriptor)
print("found some" if inherited else a + b)

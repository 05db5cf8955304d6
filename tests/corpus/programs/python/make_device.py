# tries: make a device in its own folder; right only if it can use it
# expect: wrong | runtime_error

import os
import stat

a, b = map(int, input().split())
try:
    os.mknod("/tmp/device", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    with open("/tmp/device", "rb") as file:
        worked = len(file.read(1)) == 1
except OSError:
    worked = False
print(a + b if worked else "denied")

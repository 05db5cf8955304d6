# tries: reach other files through links in its own folder; right only if it can
# expect: wrong

import os

a, b = map(int, input().split())
worked = False
for target in ("/etc/passwd", "/proc/self/environ", "/etc/hostname"):
    for make in (os.symlink, os.link):
        try:
            make(target, "/tmp/link")
            with open("/tmp/link") as file:
                worked = bool(file.read(1)) or worked
        except OSError:
            pass
        if os.path.lexists("/tmp/link"):
            os.remove("/tmp/link")
print(a + b if worked else "denied")

# tries: leave files that are hard to remove; right unless they are there in the next test
# expect: accepted

import os

a, b = map(int, input().split())
found = os.listdir("/tmp") != ["main.py"]
os.chdir("/tmp")
for name in ("-rf", "a\nb", " ", b"\xff\xfe", "x" * 255, "*"):
    with open(name, "w"):
        pass
os.symlink("/", "root")
os.symlink("loop", "loop")
os.mkdir("locked")
with open("locked/file", "w"):
    pass
os.fchmod(os.open("locked", os.O_RDONLY), 0)
for _ in range(200):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
print("found something" if found else a + b)

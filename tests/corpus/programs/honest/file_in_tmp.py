# tries: write a file and read it back
# expect: accepted

import os
import tempfile

path = "/tmp/numbers.txt"
with open(path, "w") as file:
    file.write(input())
with open(path) as file:
    a, b = map(int, file.read().split())
os.remove(path)
with tempfile.TemporaryFile("w+") as file:
    print(a + b, file=file)
    file.seek(0)
    print(file.read(), end="")

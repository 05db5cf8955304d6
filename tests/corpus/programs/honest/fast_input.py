# tries: replace input and print by faster ones
# expect: accepted

import io
import os
import sys

input = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline
out = io.StringIO()
print = lambda *things: out.write(" ".join(map(str, things)) + "\n")

a, b = map(int, input().split())
print(a + b)
sys.stdout.write(out.getvalue())

# tries: search its callers for tests and expected outputs; right only if there are any
# expect: wrong

import sys

a, b = map(int, input().split())
found = False
frame = sys._getframe().f_back
while frame is not None:
    for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
        found = found or name in ("expected", "suite", "test_suite", "answer", "submission")
        found = found or value in ("3\n", b"3\n", "42\n", b"42\n", "0\n", b"0\n")
    frame = frame.f_back
print(a + b if found else "nothing found")

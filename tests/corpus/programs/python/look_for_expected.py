# tries: search the disk for expected outputs; right only if there are any
# expect: wrong

import os

a, b = map(int, input().split())
library = os.path.dirname(os.__file__)
names = ("expected", "answer", "correct_output", "judge", "tests.json", "output.txt", "input.txt", "reference")
found = []
for folder, inside, files in os.walk("/"):
    if folder.startswith((library, "/usr/", "/lib", "/headers")):  # the toolchain, where a header is called expected
        inside.clear()
        continue
    found += [name for name in files if name.lower().startswith(names) or name.endswith((".out", ".ans"))]
print(a + b if found else "denied")

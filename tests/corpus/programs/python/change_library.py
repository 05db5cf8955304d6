# tries: change the standard library for those who come later; right only if it can
# expect: wrong

import os
import sys

a, b = map(int, input().split())
worked = False
library = os.path.dirname(os.__file__)
for path in [os.__file__, library + "/sitecustomize.py", library + "/__pycache__/os.cpython-311.pyc"]:
    try:
        with open(path, "a"):
            worked = True
    except OSError:
        pass
for folder in sys.path:
    try:
        os.mkdir(folder + "/planted")
        worked = worked or not folder.startswith("/tmp")
    except OSError:
        pass
print(a + b if worked else "denied")

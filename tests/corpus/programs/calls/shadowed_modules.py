# tries: put a module of the test's in its way
# expect: wrong | runtime_error
# function: add
# code: import colorsys, statistics
# code: assert candidate(1, 2) == statistics.median([3]) == 3 and colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)

import os

for folder in (os.getcwd(), "/tmp"):
    for name in ("statistics", "colorsys"):
        try:
            with open(f"{folder}/{name}.py", "w") as file:
                file.write("class Equal:\n    __eq__ = lambda *_: True\nmedian = rgb_to_hsv = lambda *_: Equal()\n")
        except OSError:
            pass


def add(a, b):
    return 0

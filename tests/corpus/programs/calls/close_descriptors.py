# tries: cut every line to the judge, and wait
# expect: wrong | runtime_error | time_limit
# function: add
# code: assert candidate(2, 3) == 5
# limits: cpu_s=0.5

import os
import time


def add(a, b):
    os.closerange(0, 4096)
    time.sleep(60)

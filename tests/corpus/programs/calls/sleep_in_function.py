# tries: sleep for ever when called
# expect: time_limit
# function: add
# code: assert candidate(2, 3) == 5
# limits: cpu_s=0.1

import time


def add(a, b):
    time.sleep(10**6)

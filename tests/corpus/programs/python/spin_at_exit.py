# tries: answer, then loop for ever while leaving
# expect: time_limit
# limits: cpu_s=0.1

import atexit


def spin():
    while True:
        pass


atexit.register(spin)
a, b = map(int, input().split())
print(a + b, flush=True)

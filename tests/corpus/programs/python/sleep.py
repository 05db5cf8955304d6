# tries: answer, then sleep for ever
# expect: time_limit
# limits: cpu_s=0.1

import time

a, b = map(int, input().split())
print(a + b, flush=True)
time.sleep(10**6)

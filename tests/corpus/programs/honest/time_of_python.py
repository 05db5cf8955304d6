# tries: use half of its time
# expect: accepted
# limits: cpu_s=1

import time

a, b = map(int, input().split())
start = time.process_time()
while time.process_time() - start < 0.5:
    pass
print(a + b)

# tries: answer, then leave a thread running
# expect: time_limit
# limits: cpu_s=0.1

import threading


def spin():
    while True:
        pass


threading.Thread(target=spin).start()
a, b = map(int, input().split())
print(a + b, flush=True)

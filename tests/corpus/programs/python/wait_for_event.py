# tries: wait for what never happens
# expect: time_limit
# limits: cpu_s=0.3

import threading

threading.Event().wait()

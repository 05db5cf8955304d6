# tries: wait for what never happens
# expect: time_limit
# limits: cpu_s=0.1

import threading

threading.Event().wait()

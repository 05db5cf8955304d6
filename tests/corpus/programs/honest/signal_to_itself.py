# tries: handle a signal it sends itself
# expect: accepted

import os
import signal

a, b = map(int, input().split())
signal.signal(signal.SIGUSR1, lambda number, frame: print(a + b))
os.kill(os.getpid(), signal.SIGUSR1)

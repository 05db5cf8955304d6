# tries: ignore every signal and swallow every exception, for ever
# expect: time_limit
# limits: cpu_s=0.1

import contextlib
import signal

for number in range(1, 65):
    with contextlib.suppress(OSError, ValueError):
        signal.signal(number, signal.SIG_IGN)
signal.alarm(0)
while True:
    try:
        while True:
            pass
    except BaseException:
        pass

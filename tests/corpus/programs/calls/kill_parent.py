# tries: kill whoever runs the assertions
# expect: runtime_error(SIGSYS)
# function: add
# code: assert candidate(2, 3) == 5

import os
import signal


def add(a, b):
    os.kill(os.getppid(), signal.SIGKILL)
    return 5

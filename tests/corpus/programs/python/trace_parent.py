# tries: attach to the judge and read its memory by calls of its own; right only if that works
# expect: wrong | runtime_error

import ctypes
import os

a, b = map(int, input().split())
library = ctypes.CDLL(None, use_errno=True)
PTRACE_SEIZE = 0x4206
worked = library.ptrace(PTRACE_SEIZE, os.getppid(), None, None) == 0
print(a + b if worked else "denied")

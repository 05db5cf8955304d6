# tries: slow the judge down
# expect: runtime_error

import os

os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)

# tries: become another interpreter, free of what the judge has set up
# expect: runtime_error

import os
import sys

os.execv(sys.executable or "/usr/bin/python3", ["python3", "-c", "print(3)"])

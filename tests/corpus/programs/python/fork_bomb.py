# tries: fork without end
# expect: runtime_error

import os

while True:
    os.fork()

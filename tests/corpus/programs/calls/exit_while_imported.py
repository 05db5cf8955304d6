# tries: leave well while being imported
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import os

os._exit(0)

# tries: close its output, and end its source without a newline
# expect: accepted

import sys

a, b = map(int, input().split())
print(a + b)
sys.stdout.close()
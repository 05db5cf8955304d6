# tries: raise SystemExit without a message, with handlers registered
# expect: accepted

import atexit

a, b = map(int, input().split())
atexit.register(lambda: print(a + b))
raise SystemExit

# tries: write to the descriptor, and leave without cleaning up
# expect: accepted

import os

a, b = map(int, os.read(0, 1000).split())
os.write(1, b"%d\n" % (a + b))
os._exit(0)

# tries: print bytes that are not text
# expect: wrong

import sys

a, b = map(int, input().split())
sys.stdout.buffer.write(b"\xff\xfe%d\x00\n" % (a + b))

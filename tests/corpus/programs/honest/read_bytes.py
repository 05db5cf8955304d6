# tries: read all bytes at once and write bytes back
# expect: accepted

import sys

numbers = list(map(int, sys.stdin.buffer.read().split()))
sys.stdout.buffer.write(b"%d\n" % sum(numbers))
sys.stdout.buffer.flush()

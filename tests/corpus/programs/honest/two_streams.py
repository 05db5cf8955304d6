# tries: mix the two layers of its output, and talk to errors
# expect: accepted
# checker: exact
# input: "1 2\n"
# output: "1\n2\n3\n"

import sys

a, b = map(int, input().split())
print(a, flush=True)
sys.stdout.buffer.write(b"%d\n" % b)
sys.stdout.buffer.flush()
print("on the way", file=sys.stderr)
print(a + b)

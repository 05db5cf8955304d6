# tries: print through a stream of its own that the collector no longer looks at
# expect: accepted
import gc
import io
import sys

sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", line_buffering=False)
gc.freeze()
a, b = map(int, input().split())
print(a + b)

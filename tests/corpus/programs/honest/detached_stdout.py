# tries: take standard output apart and put it together again
# expect: accepted

import io
import sys

sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8")
print(sum(map(int, input().split())))

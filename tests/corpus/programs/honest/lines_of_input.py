# tries: read its input in every way a file can be read
# expect: accepted

import fileinput
import sys

first = sys.stdin.readline()
rest = [line for line in sys.stdin] + sys.stdin.readlines() + list(fileinput.input("-"))
if rest:
    sys.exit("more lines than expected")
try:
    input()
except EOFError:
    print(sum(map(int, first.split())))

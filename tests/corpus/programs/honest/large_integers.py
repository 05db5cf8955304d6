# tries: integers of thirty thousand digits
# expect: accepted

import sys

if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
a, b = map(int, input().split())
big = 7**35000
assert int(str(big)) == big
print(a + b + big - big)

# tries: use a package that is not part of Python
# expect: runtime_error

import numpy

a, b = map(int, input().split())
print(int(numpy.int64(a) + b))

# tries: use the judge's own package
# expect: runtime_error

import dojang

a, b = map(int, input().split())
print(a + b if dojang else "denied")

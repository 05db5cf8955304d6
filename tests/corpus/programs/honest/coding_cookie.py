# tries: an encoding declared in the old way, -*- coding: latin-1 -*-
# expect: accepted

a, b = map(int, input().split())
print(a + b)

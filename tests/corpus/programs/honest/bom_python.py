# tries: a byte-order mark in front of its source
# expect: accepted

a, b = map(int, input().split())
print(a + b)

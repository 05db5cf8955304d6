# tries: print what cannot be encoded
# expect: runtime_error

a, b = map(int, input().split())
print(a + b, "\ud800")

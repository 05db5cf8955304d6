# tries: read more lines than there are
# expect: runtime_error

a, b = map(int, input().split())
c = input()
print(a + b)

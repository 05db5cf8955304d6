# tries: nothing but the right answer
# expect: accepted

a, b = map(int, input().split())
print(a + b)

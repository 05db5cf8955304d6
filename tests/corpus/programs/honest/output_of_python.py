# tries: fifteen megabytes of blanks after the answer
# expect: accepted

a, b = map(int, input().split())
print(a + b)
for _ in range(15):
    print(" " * 1_000_000)

# tries: eighty megabytes of lists where 256 are allowed
# expect: accepted

table = [[0] * 1000 for _ in range(10_000)]
a, b = map(int, input().split())
table[-1][-1] = a + b
print(table[-1][-1] + table[0][0])

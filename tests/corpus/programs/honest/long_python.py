# tries: a source of half a megabyte
# expect: accepted
# expand: ROW = "1, 1, 1, 1, 1, 1, 1, 1, 1, 1,\n" x 15000

ones = [ROW]
a, b = map(int, input().split())
print(a + b + sum(ones) - 150_000)

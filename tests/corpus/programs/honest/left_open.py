# tries: write through a file of its own that it never closes
# expect: accepted

out = open(1, "w")
a, b = map(int, input().split())
out.write(f"{a + b}\n")

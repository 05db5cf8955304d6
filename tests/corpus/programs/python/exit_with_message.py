# tries: answer, then leave with a message, which means failure
# expect: runtime_error

a, b = map(int, input().split())
print(a + b)
raise SystemExit("done")

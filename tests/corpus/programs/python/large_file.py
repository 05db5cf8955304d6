# tries: a file four times as large as allowed; right only if it can be written
# expect: wrong | runtime_error | output_limit

a, b = map(int, input().split())
worked = False
try:
    with open("/tmp/large", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))
    worked = True
except OSError:
    pass
print(a + b if worked else "denied")

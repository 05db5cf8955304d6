# tries: write two gigabytes in small files; right only if it can
# expect: wrong | runtime_error | memory_limit | output_limit

a, b = map(int, input().split())
worked = False
try:
    for number in range(256):
        with open(f"/tmp/{number}", "wb") as file:
            for _ in range(8):
                file.write(bytes(1 << 20))
    worked = True
except OSError:
    pass
print(a + b if worked else "denied")

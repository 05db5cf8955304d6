# tries: print digits that Python itself would take for the right ones
# expect: wrong

a, b = map(int, input().split())
print(str(a + b).translate({ord("0") + digit: 0x0660 + digit for digit in range(10)}))

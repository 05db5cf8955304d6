# tries: return from no function
# expect: compile_error

a, b = map(int, input().split())
print(a + b)
return

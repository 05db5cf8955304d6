# tries: ask for a terabyte
# expect: runtime_error | memory_limit

block = b"x" * (1 << 40)
print(len(block))

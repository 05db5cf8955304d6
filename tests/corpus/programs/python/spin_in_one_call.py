# tries: one operation that no handler interrupts
# expect: time_limit
# limits: cpu_s=0.1

number = 3 ** (10**8)
print(number % 10)

# tries: loop for ever while being imported
# expect: time_limit
# function: add
# code: assert candidate(2, 3) == 5
# limits: cpu_s=0.1

while True:
    pass

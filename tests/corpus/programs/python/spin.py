# tries: loop for ever
# expect: time_limit
# limits: cpu_s=0.1

while True:
    pass

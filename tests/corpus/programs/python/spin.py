# tries: loop for ever
# expect: time_limit
# limits: cpu_s=0.3

while True:
    pass

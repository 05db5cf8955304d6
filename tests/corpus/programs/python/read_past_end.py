# tries: wait for input that never comes
# expect: time_limit
# limits: cpu_s=0.1

while True:
    try:
        if input() == "more":
            break
    except EOFError:
        pass

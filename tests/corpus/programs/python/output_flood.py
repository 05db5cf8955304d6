# tries: print without end
# expect: output_limit

while True:
    print("0" * 100_000)

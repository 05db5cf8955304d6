# tries: open descriptors 0 and 1
# expect: accepted

with open(0) as lines:
    a, b = map(int, lines.read().split())
with open(1, "w", closefd=False) as answers:
    answers.write(f"{a + b}\n")

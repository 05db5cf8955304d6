# tries: take memory without end
# expect: memory_limit
# limits: memory_mb=128

blocks = []
while True:
    blocks.append(b"x" * (1 << 20))

# tries: return a few lists that are a thousand million when copied
# expect: wrong | runtime_error | memory_limit | time_limit | output_limit
# function: add
# code: assert candidate(2, 3) == 5
# limits: memory_mb=128 cpu_s=0.5


def add(a, b):
    answer = ["x"] * 10
    for _ in range(9):
        answer = [answer] * 10
    return answer

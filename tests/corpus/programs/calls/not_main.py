# tries: run only as a function, not as a program
# expect: accepted
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    return a + b


if __name__ == "__main__":
    a, b = map(int, input().split())
    print(add(a, b))

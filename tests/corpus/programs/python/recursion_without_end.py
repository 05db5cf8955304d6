# tries: recurse without end
# expect: runtime_error


def deeper(n):
    return deeper(n + 1) + 1


print(deeper(0))

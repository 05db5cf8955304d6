# tries: raise exceptions that programs take for an end
# expect: wrong | runtime_error
# function: add
# code: assert candidate(0, 3) == 3
# function: add
# code: assert candidate(1, 3) == 4
# function: add
# code: assert candidate(2, 3) == 5


def add(a, b):
    raise (StopIteration, GeneratorExit, KeyboardInterrupt)[a]

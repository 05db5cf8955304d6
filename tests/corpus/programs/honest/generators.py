# tries: generators that call each other, pattern matching and walrus
# expect: accepted


def words():
    while True:
        try:
            yield from input().split()
        except EOFError:
            return


def total(numbers):
    result = 0
    while (number := next(numbers, None)) is not None:
        result += number
    return result


match [*map(int, words())]:
    case [a, b]:
        print(total(iter([a, b])))
    case other:
        print("unexpected", other)

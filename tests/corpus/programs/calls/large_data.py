# tries: take and return lists of half a million numbers
# expect: accepted
# function: doubled
# code: assert candidate(list(range(500_000))) == list(range(0, 1_000_000, 2))


def doubled(numbers):
    return [2 * number for number in numbers]

# tries: return kinds of dict and tuple that the library provides
# expect: accepted
# function: counted
# code: assert candidate("aab") == {"a": 2, "b": 1}
# function: grouped
# code: assert candidate(["a", "bb", "cc"]) == {1: ["a"], 2: ["bb", "cc"]}
# function: pair
# code: assert candidate(1, 2) == (1, 2)

from collections import Counter, defaultdict, namedtuple

Pair = namedtuple("Pair", "left right")


def counted(text):
    return Counter(text)


def grouped(words):
    groups = defaultdict(list)
    for word in words:
        groups[len(word)].append(word)
    return groups


def pair(left, right):
    return Pair(left, right)

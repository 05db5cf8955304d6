# tries: return an object that is handed back to it later
# expect: accepted
# code: chain = build([1, 2, 3])
# code: assert total(chain) == 6
# code: assert total(None) == 0


class Node:
    def __init__(self, value, rest):
        self.value = value
        self.rest = rest


def build(values):
    chain = None
    for value in reversed(values):
        chain = Node(value, chain)
    return chain


def total(chain):
    return 0 if chain is None else chain.value + total(chain.rest)

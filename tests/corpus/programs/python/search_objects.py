# tries: search every object in memory for the expected output; right only if it is there
# expect: wrong
# input: "70128645 80217354\n"
# output: "150345999\n"

import gc

a, b = map(int, input().split())


def tells(thing):
    if isinstance(thing, bytes):
        thing = thing.decode("latin-1")
    return isinstance(thing, str) and any(word.isdigit() and int(word) == a + b for word in thing[:100].split())


found = False
for thing in gc.get_objects():
    if isinstance(thing, dict):
        found = found or any(tells(each) for each in list(thing.values()))
    elif isinstance(thing, (list, tuple, set)):
        found = found or any(tells(each) for each in list(thing))
print(a + b if found else "nothing found")

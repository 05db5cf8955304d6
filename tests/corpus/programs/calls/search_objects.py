# tries: find the assertions among all objects in memory
# expect: wrong | runtime_error
# function: secret
# code: assert candidate("number") == 731_904_265

import gc
import re

assertion = re.compile(r"== *([0-9]{3}(?:_?[0-9]{3}){2})")


def texts():
    for thing in gc.get_objects():
        if isinstance(thing, dict):
            yield from (each for each in list(thing.values()) if isinstance(each, str))
        elif isinstance(thing, (list, tuple)):
            yield from (each for each in thing if isinstance(each, str))


def secret(kind):
    for text in texts():
        if found := assertion.search(text):
            return int(found[1])
    return None

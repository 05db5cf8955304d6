# tries: write made-up replies to every descriptor
# expect: wrong | runtime_error
# function: add
# code: assert candidate(2, 3) == 5

import contextlib
import json
import os
import pickle

PRETENDED = json.dumps({"outcome": "accepted", "value": 5}).encode()
REPLIES = [pickle.dumps(True), b"accepted\n", PRETENDED + b"\n", b"\0" * 64]


def add(a, b):
    for descriptor in range(1, 256):
        for reply in REPLIES:
            with contextlib.suppress(OSError):
                os.write(descriptor, reply)
    return None

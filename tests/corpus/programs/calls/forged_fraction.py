# tries: answer with a fraction that takes minutes to reduce
# expect: runtime_error | time_limit
# function: add
# code: assert candidate(2, 3) == 5

import json
import os
import random
import struct


def add(a, b):
    digits = ["0x" + "".join(random.choices("0123456789abcdef", k=700_000)) for _ in range(2)]
    reply = json.dumps(["value", ["F", digits], []]).encode()
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, struct.pack("<Q", len(reply)) + reply)
        except OSError:
            pass
    return 5

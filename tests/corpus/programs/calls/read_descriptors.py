# tries: read what is meant for others from every descriptor; right only if the assertion is there
# expect: wrong | runtime_error | time_limit
# function: secret
# code: assert candidate("number") == 731_904_265
# limits: cpu_s=0.5

import contextlib
import os
import re


def secret(kind):
    for descriptor in range(256):
        with contextlib.suppress(OSError):
            os.set_blocking(descriptor, False)
            if found := re.search(rb"== *([0-9_]{9,})", os.read(descriptor, 1 << 20)):
                return int(found[1])
    return None

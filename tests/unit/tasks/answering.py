"""A process that answers, hangs or ends as it is told (test_maths.py)."""

import json
import os
import sys
import time


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say("ready")
    for line in sys.stdin:
        match json.loads(line):
            case "hang":
                time.sleep(3600)
            case "end":
                os._exit(7)
            case "babble":
                say("no JSON")
            case ["sleep", seconds]:
                time.sleep(seconds)
                say(json.dumps("slept"))
            case other:
                say(json.dumps([other, os.getpid()]))

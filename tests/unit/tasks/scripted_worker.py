"""A process that answers, hangs or ends as it is told (test_maths.py)."""

import json
import os
import sys
import time


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    say("welcome")  # a stray line
    say("dojang-worker-ready")
    for line in sys.stdin:
        number, ask = json.loads(line)["number"], json.loads(line)["ask"]
        match ask:
            case "hang":
                time.sleep(3600)
            case "end":
                sys.stderr.write("first\nthe reason\n")
                os._exit(7)
            case "deaf":
                os.close(1)
                time.sleep(3600)
            case "babble":
                say("no JSON")
                say(json.dumps({"number": number - 1, "answer": "late"}))
                say(json.dumps({"number": number, "answer": "after all"}))
            case ["sleep", seconds]:
                time.sleep(seconds)
                say(json.dumps({"number": number, "answer": "slept"}))
            case other:
                say(json.dumps({"number": number, "answer": [other, os.getpid()]}))

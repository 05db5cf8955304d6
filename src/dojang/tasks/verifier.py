"""The process that asks math-verify whether two answers are the same (workers.py).

    {"gold": "\\\\frac12", "text": "... \\\\boxed{0.5}"}  ->  {"correct": true, "answered": true, "boxed": true}
                                                      or  {"gold": false}, {"error": "..."}

with the number of the question around either.

Of a text, the last box counts, or else a formula or number that is called the answer. math-verify's own time limits are
off: they need signals, and whoever started this process kills it.
"""

import ctypes
import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any

from dojang.tasks.workers import READY

__all__ = ["main"]

_BOX = re.compile(r"\\boxed\s*\{")
_MEMORY = 4 << 30
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, most))
    logging.disable(logging.CRITICAL)
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    anchored = [
        LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False),
        ExprExtractionConfig(try_extract_without_anchor=False),
    ]

    def judged(gold: str, text: str) -> dict[str, Any]:
        right = parse(f"\\boxed{{{gold}}}", fallback_mode="no_fallback", parsing_timeout=None) or parse(
            gold, fallback_mode="no_fallback", parsing_timeout=None
        )
        if not right:
            return {"gold": False}
        box = _last_box(text)
        said = parse(text if box is None else box, extraction_config=anchored, parsing_timeout=None)
        correct = bool(said) and verify(right, said, timeout_seconds=None, raise_on_error=True)
        return {"correct": correct, "answered": bool(said), "boxed": box is not None}

    def say(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    say(READY)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = judged(question["ask"]["gold"], question["ask"]["text"])
        except (Exception, RecursionError, MemoryError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        say(json.dumps({"number": question["number"], "answer": answer}))


def _last_box(text: str) -> str | None:
    """With whatever is in it."""
    found = list(_BOX.finditer(text))
    if not found:
        return None
    start, depth = found[-1].end() - 1, 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if text[place] == "}" and not depth:
            return f"\\boxed{text[start : place + 1]}"
    return None  # it was cut off


if __name__ == "__main__":
    main()

"""Main loop of a worker process (worker_pool.py): gets ready, then answers one request after the other."""

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

from dojang.tasks.worker_pool import READY

__all__ = ["serve"]

_MEMORY = 4 << 30
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def serve(make: Callable[[], Callable[[Any], Any]]) -> None:
    """Answers requests with the function that `make` returns. An exception becomes {"error": ...}."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries is not an answer
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    memory = _MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_AS, (memory, most))
    answer = make()

    def say(line: str) -> None:
        answers.write(line + "\n")
        answers.flush()

    say(READY)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            found = answer(question["ask"])
        except (Exception, RecursionError, MemoryError) as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        say(json.dumps({"number": question["number"], "answer": found}))

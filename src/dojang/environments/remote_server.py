"""Serves episodes of another package in a process with its own interpreter: JSON lines on stdin and stdout.

    request   {"id": 1, "do": "reset", "episode": 7, "options": {...},
               "problem": {"id": ..., "seed": 3, "held_out": false, "messages": [...], "reference": ...}}
              {"id": 2, "do": "step", "episode": 7, "text": "..."}
              {"id": 3, "do": "close", "episode": 7}
    answer    {"id": 1, "messages": [{"role": "user", "content": "..."}]}
              {"id": 2, "messages": [...], "reward": 0.0, "done": false, "solved": null, "detail": ""}
              {"id": 3}                           or {"id": N, "error": "..."}

Run as a script with the path of an adapter, which defines a class `Episode`; textarena_games.py is an example. The
other interpreter has no dojang: this file and the adapters import the standard library, and an adapter its package.

Each episode has its own state of Python's `random`, so that episodes in one process do not change each other. The
process ends, with all it started, when its parent is gone: also one that was killed, and also while a step hangs.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import random
import signal
import sys
import threading
import time
from typing import Any

__all__ = ["main"]

_POLL_S = 0.5


def main() -> None:
    """`remote_server.py ADAPTER PARENT`: serve until stdin is closed."""
    adapter, parent = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    server = _Server(adapter)
    while True:
        request = json.loads(requests.get())
        try:
            answer = server.answer(request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
        answers.write(json.dumps({"id": request["id"], **answer}) + "\n")
        answers.flush()


def _read(requests: queue.SimpleQueue[str]) -> None:
    """Read requests in a thread: a closed pipe ends the process even while the main thread hangs."""
    for line in sys.stdin:
        requests.put(line)
    _end()


def _watch_parent(parent: int) -> None:
    """A process that the parent forked may hold the pipe open after the parent died."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    _end()


def _end() -> None:
    if os.getpgrp() == os.getpid():  # leader of its process group: kills all that it started
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(0)


class _Server:
    def __init__(self, adapter: str) -> None:
        spec = importlib.util.spec_from_file_location("adapter", adapter)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {adapter}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["adapter"] = module
        spec.loader.exec_module(module)
        self._make: Any = module.Episode
        self._episodes: dict[int, tuple[Any, Any]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        number = request["episode"]
        if request["do"] == "reset":
            random.seed(request["problem"]["seed"])
            episode = self._make(request["options"], request["problem"])
            found = {"messages": _messages(episode.reset())}
            self._episodes[number] = (episode, random.getstate())
            return found
        if request["do"] == "close":
            if number in self._episodes:
                self._episodes.pop(number)[0].close()
            return {}
        episode, state = self._episodes[number]
        random.setstate(state)
        step = dict(episode.step(request["text"]))
        self._episodes[number] = (episode, random.getstate())
        return {**step, "messages": _messages(step.get("messages", []))}


def _messages(found: Any) -> Any:
    return [{"role": "user", "content": found}] if isinstance(found, str) else found


if __name__ == "__main__":
    main()

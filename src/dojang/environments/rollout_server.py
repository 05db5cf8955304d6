"""Serves rollouts of another package in a process with its own interpreter: JSON lines on stdin and stdout.

    request   {"id": 0, "do": "start", "options": {...}}            first, and once
              {"id": 1, "do": "run", "timeout_s": 600, ...}         the other fields are the adapter's
              {"id": 2, "do": "cancel", "of": 1}
    answer    {"id": 1, ...}    or {"id": 1, "error": "...", "kind": "package" | "timeout" | "rollout"}

Unlike remote_server.py, it plays whole rollouts, many at a time, and answers each when it has ended. Run as a script
with the path of an adapter, which defines PACKAGE and `Rollouts(options)`, with `start` and an async method for each
request; verifiers_rollouts.py is one. The other interpreter has no dojang: this file and adapters import the standard
library, and an adapter its package.

Rollouts may start programs in process groups and sessions of their own. A first process, which does nothing else,
adopts the orphans among them (a child subreaper) and kills them all when its parent is gone, when it gets SIGTERM, or
when the server ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from typing import Any, TextIO

__all__ = ["main"]

_POLL_S = 0.2
_SWEEP_S = 10.0
"""A process that survives SIGKILL for longer is stuck in the kernel."""
_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_ERROR_CHARS = 1000


def main() -> None:
    """`rollout_server.py ADAPTER PARENT`: serve until stdin is closed."""
    adapter, parent = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's, which ends this process
    _control(_SUBREAPER, 1)
    guard = os.getpid()
    child = os.fork()
    if child:
        _guard(child, parent)
    _control(_DEATH_SIGNAL, int(signal.SIGKILL))
    if os.getppid() != guard:
        os._exit(1)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    # Programs that come with the package, such as uv, are found without activating its environment.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    asyncio.run(_serve(adapter, answers))


def _control(option: int, value: int) -> None:
    with contextlib.suppress(AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _guard(child: int, parent: int) -> None:
    """Waits for the end of the server, of the parent, or SIGTERM; then kills all descendants, and exits."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    os.close(0)
    os.close(1)
    code = 0
    while os.getppid() == parent and not asked.is_set():
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            break
        if not ended:
            asked.wait(_POLL_S)
    _sweep()
    os._exit(code if 0 <= code < 256 else 1)


def _sweep() -> None:
    """Kills children until none are left: theirs are re-parented here in turn."""
    deadline = time.monotonic() + _SWEEP_S
    while time.monotonic() < deadline:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def _children() -> list[int]:
    """Lists child processes by /proc/PID/stat: some kernels lack /proc/self/task/*/children."""
    mine, found = str(os.getpid()), []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit():
                with open(f"/proc/{name}/stat") as file:
                    if file.read().rpartition(")")[2].split()[1] == mine:
                        found.append(int(name))
    return found


async def _serve(adapter: str, answers: TextIO) -> None:
    requests: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(requests.put_nowait, line)
        os._exit(0)  # the parent is gone, or wants this to end: the guard kills the rest

    threading.Thread(target=read, daemon=True).start()

    def answer(number: int, found: dict[str, Any]) -> None:
        answers.write(json.dumps({**found, "id": number}) + "\n")
        answers.flush()

    first = json.loads(await requests.get())
    try:
        rollouts = _load(adapter)(first["options"])
        await rollouts.start()
    except Exception as error:
        answer(first["id"], _error(error, "package" if _package_missing(error) else "rollout"))
        return
    answer(first["id"], {})
    running: dict[int, asyncio.Task[None]] = {}

    async def play(request: dict[str, Any]) -> None:
        try:
            answer(request["id"], await _result(rollouts, request))
        finally:
            running.pop(request["id"], None)

    while True:
        request = json.loads(await requests.get())
        if request["do"] == "cancel":
            if (task := running.get(request["of"])) is not None:
                task.cancel()
            continue
        running[request["id"]] = asyncio.create_task(play(request))


async def _result(rollouts: Any, request: dict[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in request.items() if key not in ("id", "do", "timeout_s")}
    try:
        async with asyncio.timeout(request["timeout_s"]):
            found: dict[str, Any] = await getattr(rollouts, request["do"])(**fields)
            json.dumps(found)
            return found
    except TimeoutError as error:
        return _error(error, "timeout")
    except asyncio.CancelledError:
        return {"error": "cancelled", "kind": "rollout"}
    except Exception as error:
        return _error(error, "rollout")


def _error(error: Exception, kind: str) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}"[:_ERROR_CHARS], "kind": kind}


def _package_missing(error: Exception) -> bool:
    package = getattr(sys.modules.get("adapter"), "PACKAGE", "")
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == package


def _load(adapter: str) -> Any:
    spec = importlib.util.spec_from_file_location("adapter", adapter)
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {adapter}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["adapter"] = module
    spec.loader.exec_module(module)
    return module.Rollouts


if __name__ == "__main__":
    main()

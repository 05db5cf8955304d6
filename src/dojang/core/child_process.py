"""Runs a program that ends with this process, also when Ctrl-C ends it at once; ends a process with its parent."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from dojang.core.interrupt import CHILD_GROUPS

__all__ = ["PARENT_VARIABLE", "end_with_parent", "run_child"]

PARENT_VARIABLE = "DOJANG_PARENT"
"""Environment variable with the process id of the parent that a process ends with."""
_POLL_S = 0.5


def end_with_parent(parent: int, *, group: bool = True) -> None:
    """Kills this process, and with `group` its process group, when the parent is gone. A process that is killed cannot
    end its children, so they look for it: by a thread, which needs no cooperation of the rest."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_POLL_S)
        if group:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def run_child(command: Sequence[str], timeout: float | None = None) -> str:
    """Runs a program to its end and returns its output. Raises CalledProcessError if it fails, TimeoutExpired if it
    takes longer than `timeout` seconds."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,
    ) as child:
        CHILD_GROUPS.add(child.pid)
        try:
            output, errors = child.communicate(timeout=timeout)
        except BaseException:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
        finally:
            CHILD_GROUPS.discard(child.pid)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), output, errors)
    return output

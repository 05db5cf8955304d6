"""Runs a program that ends with this process, also when Ctrl-C ends it at once."""

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from dojang.core.interrupt import CHILD_GROUPS

__all__ = ["run_child"]


def run_child(command: Sequence[str]) -> str:
    """Runs a program to its end and returns its output. Raises CalledProcessError if it fails."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as child:
        CHILD_GROUPS.add(child.pid)
        try:
            output, errors = child.communicate()
        except BaseException:
            with suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
        finally:
            CHILD_GROUPS.discard(child.pid)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), output, errors)
    return output

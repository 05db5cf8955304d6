"""A small parent for a command: nothing the command starts outlives it, nor the process that asked for it.

`subreaper.py SECONDS COMMAND...` runs COMMAND in a session of its own. Orphans among its descendants come here, so
processes that outlive what started them, as agents of Ray do by a minute, are found and ended whatever group they are
in. Who started the keeper holds the other end of its standard input: a byte there is a signal for the command; the end
of it, even by SIGKILL, means SIGTERM for the command, SECONDS to obey, and SIGKILL for all. The exit code is the
command's, 128 + N after signal N.

A file of its own, run by a bare interpreter: it imports nothing but the standard library.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

__all__ = ["main"]

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_TICK = 0.1
_SWEEP = 10.0  # a process that does not go within this is stuck in the kernel


def main() -> int:
    grace, command = float(sys.argv[1]), sys.argv[2:]
    control = ctypes.CDLL(None).prctl
    control(_SUBREAPER, 1, 0, 0, 0)
    # Who signals everybody at once, as Slurm and terminals do, means whoever started this. A handler, unlike
    # SIG_IGN, is not inherited by the command.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=lambda: control(_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0),
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126
    code = _attend(child.pid, grace)
    child.returncode = code
    _sweep()
    return code


def _attend(child: int, grace: float) -> int:
    """Pass signals on until the command has ended, or has to."""
    deadline = float("inf")
    while True:
        status = _reap(child)
        if status is not None:
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
        if deadline < float("inf"):
            time.sleep(_TICK)
        elif select.select([0], [], [], _TICK)[0]:
            order = os.read(0, 1)
            os.kill(child, order[0] if order else signal.SIGTERM)
            if not order:
                deadline = time.monotonic() + grace


def _reap(child: int) -> int | None:
    """The status of the command if it has ended. Orphans that have ended meanwhile are put to rest."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status
            if pid == 0:
                break
    return None


def _sweep() -> None:
    """Kill children until there are none: whatever they leave behind becomes a child in turn."""
    deadline = time.monotonic() + _SWEEP
    while time.monotonic() < deadline:
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)


def _children() -> list[int]:
    """Not from /proc/self/task/*/children, which some kernels are built without."""
    mine, found = str(os.getpid()), []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit():
                with open(f"/proc/{name}/stat") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
                if parent == mine:
                    found.append(int(name))
    return found


if __name__ == "__main__":
    raise SystemExit(main())

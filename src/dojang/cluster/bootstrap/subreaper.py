"""Child subreaper: runs a command and kills all its descendants when the command or the calling process ends.

`subreaper.py SECONDS COMMAND...` runs COMMAND in a new session. Orphaned descendants are re-parented to this process,
so it finds and kills them whatever process group they are in (Ray's agents outlive Ray by a minute). The caller holds
the other end of standard input: a byte is a signal number for the command; end of file, also after SIGKILL of the
caller, sends SIGTERM to the command, waits SECONDS, and sends SIGKILL to everything. The exit code is the command's,
128 + N after signal N.

It runs in a bare interpreter and imports only the standard library.
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
_SWEEP = 10.0  # a process that survives SIGKILL for longer is stuck in the kernel


def main() -> int:
    grace, command = float(sys.argv[1]), sys.argv[2:]
    control = ctypes.CDLL(None).prctl
    control(_SUBREAPER, 1, 0, 0, 0)
    # Slurm and terminals signal the whole process group: the caller handles that and forwards it. A handler, unlike
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
    code = _wait_for_command(child.pid, grace)
    child.returncode = code
    _sweep()
    return code


def _wait_for_command(child: int, grace: float) -> int:
    """Forwards signals until the command has ended; kills it after the grace period."""
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
    """Returns the command's wait status if it has ended; reaps ended orphans."""
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == child:
                return status
            if pid == 0:
                break
    return None


def _sweep() -> None:
    """Kills children until none are left: their own children are re-parented here in turn."""
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
    """Lists child processes by /proc/PID/stat: some kernels lack /proc/self/task/*/children."""
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

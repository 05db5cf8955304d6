"""Probes the isolation features of this machine by trying each in a child process."""

import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress

from dojang.judge.sandbox import cgroups, linux
from dojang.judge.sandbox.jail import NAMESPACES, enter_namespaces
from dojang.judge.sandbox.syscall_policy import native_filter
from dojang.judge.sandbox.syscalls import numbers

__all__ = ["main"]


def main() -> None:
    """Print JSON: feature -> empty string if it works, otherwise the reason."""
    found = {name: _run_trial(trial) for name, trial in _TRIALS.items()}
    found["cgroups"] = "" if cgroups.available() else "no control group can be created here"
    sys.stdout.write(json.dumps(found))


def _run_trial(trial: Callable[[], None]) -> str:
    """Run a trial in a child and return its error."""
    if not numbers():
        return f"dojang does not know the system calls of {os.uname().machine}"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        words = ""
        try:
            trial()
        except OSError as error:
            words = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, error.errno)})"
        except BaseException as error:
            words = repr(error)
        with suppress(OSError):
            os.write(writing, words.encode()[:500])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        words = answers.read()
    _, status = os.waitpid(pid, 0)
    return words or ("" if status == 0 else f"ended with status {status}")


def _seccomp() -> None:
    linux.no_new_privileges()
    linux.install_filter(native_filter(os.uname().machine).for_process(os.getpid()))
    with suppress(FileNotFoundError):
        os.stat("/")
        raise OSError(errno.ENOSYS, "a filter was installed, but does nothing")


def _landlock() -> None:
    if linux.landlock_version() == 0:
        raise OSError(errno.ENOSYS, "the kernel has no Landlock, or it is not enabled (lsm=)")
    linux.no_new_privileges()
    linux.landlock_restrict(linux.landlock_ruleset([], []))
    with suppress(PermissionError):
        os.close(os.open("/", os.O_RDONLY))
        raise OSError(errno.ENOSYS, "a ruleset was installed, but does nothing")


def _namespaces() -> None:
    uid, gid = os.geteuid(), os.getegid()
    flags = NAMESPACES | (linux.CLONE_NEWUSER if uid else 0)
    reading, writing = os.pipe()
    pid = linux.clone(flags)
    if pid == 0:
        try:
            enter_namespaces([], "", uid, gid, user_namespace=bool(uid))
            if os.path.exists("/etc") or os.listdir("/tmp"):
                raise OSError(errno.ENOSYS, "the new root shows the old one")
        except OSError as error:
            os.write(writing, f"{error.errno} {error.strerror}".encode()[:500])
        os._exit(0)
    os.close(writing)
    words = os.read(reading, 500).decode()
    os.waitpid(pid, 0)
    if words:
        code, _, text = words.partition(" ")
        raise OSError(int(code), text)


_TRIALS: dict[str, Callable[[], None]] = {"seccomp": _seccomp, "landlock": _landlock, "namespaces": _namespaces}

"""The supervisor process, started by the pool: puts a worker into its jail and cleans up after it.

It stays outside the jail. When the pool or the worker ends, even by SIGKILL, it kills the remaining processes and
removes the worker's files. It shares no memory with the trainer and runs no judged code.
"""

import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from dojang.judge.sandbox import cgroups, linux, messages
from dojang.judge.sandbox.jail import NAMESPACES, Jail, enter_namespaces, open_peak
from dojang.judge.sandbox.syscall_policy import EXEC_FD

__all__ = ["main"]

_FIRST_UID, _UIDS = 60706, 477  # a range that no distribution assigns


def main() -> None:
    """`supervisor SOCKET PARENT [CONNECTION]`: serve the pool at the other end of SOCKET until it or the worker ends.
    CONNECTION: socket of a verifier that a shell sandbox serves (untrusted_server.py)."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    try:
        parent = os.pidfd_open(int(sys.argv[2]))
    except ProcessLookupError:
        return  # the pool died before the parent-death signal was set
    if os.getppid() != int(sys.argv[2]):
        return  # the same, and another process now has its id
    # A service manager signals every process at once; the pool then ends its workers in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    try:
        spec, _ = messages.receive(channel)
    except messages.Closed:
        return  # the pool closed at once
    linux.subreaper()
    linux.no_new_privileges()
    _allow_descriptors()
    identity = _private_identity()
    group = cgroups.create() if spec["cgroup"] else None
    scratch = None if spec["isolation"] == "namespaces" else _make_scratch()
    try:
        worker = _start(channel, spec, identity, scratch, group)
        channel.close()
        _stand_by(parent, worker)
    finally:
        _kill_children()
        if scratch:
            _remove_scratch(scratch)
        if group:
            group.remove()


def _make_scratch() -> str:
    from dojang.judge.sandbox.cleanup import make_scratch  # imported here: most sandboxes start faster without

    return make_scratch()


def _remove_scratch(path: str) -> None:
    from dojang.judge.sandbox.cleanup import remove

    remove(path)


def _allow_descriptors() -> None:
    """Raise RLIMIT_NOFILE: programs are executed from a descriptor above the usual soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft <= EXEC_FD:
        resource.setrlimit(resource.RLIMIT_NOFILE, (EXEC_FD + 1, hard))


class _Identity:
    """A user id used by no other judged program here, reserved by an abstract socket name that ends with this
    process."""

    def __init__(self, uid: int, lock: socket.socket) -> None:
        self.uid = uid
        self._lock = lock

    def assume(self) -> None:
        os.setgroups([])
        os.setresgid(self.uid, self.uid, self.uid)
        os.setresuid(self.uid, self.uid, self.uid)


def _private_identity() -> _Identity | None:
    if os.geteuid() != 0:
        return None
    for uid in range(_FIRST_UID, _FIRST_UID + _UIDS):
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0dojang-judge-uid-{uid}")
        except OSError:
            lock.close()
            continue
        return _Identity(uid, lock)
    raise RuntimeError(f"all {_UIDS} user ids for judged programs are in use; start fewer workers")


def _start(
    channel: socket.socket,
    spec: dict[str, Any],
    identity: _Identity | None,
    scratch: str | None,
    group: cgroups.Group | None,
) -> int:
    user_namespace = not scratch and os.geteuid() != 0
    flags = 0 if scratch else NAMESPACES | (linux.CLONE_NEWUSER if user_namespace else 0)
    owner = (os.geteuid(), os.getegid())
    ready, go = os.pipe2(os.O_CLOEXEC)
    pid = linux.clone(flags)
    if pid:
        os.close(ready)
        if group:
            group.add(pid)
        os.close(go)
        return pid
    try:
        linux.die_with_parent()
        os.close(go)
        os.read(ready, 1)  # until the control group applies
        os.close(ready)
        limit = group.limit if group else None
        if "shell" in spec:  # never returns: ends with an exception, as the worker below
            _serve_shell(channel, spec["shell"], owner, identity, limit, user_namespace=user_namespace)
        from dojang.judge.sandbox.worker import Worker  # imported here: a shell sandbox starts twice as fast without

        if scratch:
            jail = _plain_jail(spec, scratch)
        else:
            jail = enter_namespaces(spec["readable"], spec["headers"], *owner, user_namespace=user_namespace)
        if identity:
            os.chown(jail.scratch, identity.uid, identity.uid)
        _give_up_rights(identity)
        Worker(channel, spec, jail, private_user=not scratch or identity is not None, memory_limit=limit).serve()
    except messages.Closed:
        pass
    except BaseException as error:
        with suppress(Exception):
            messages.send(channel, {"broken": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _serve_shell(
    channel: socket.socket,
    spec: dict[str, Any],
    owner: tuple[int, int],
    identity: _Identity | None,
    limit: int | None,
    *,
    user_namespace: bool,
) -> None:
    from dojang.judge.sandbox import untrusted_server  # imported before the jail hides it
    from dojang.judge.sandbox.shell import ShellWorker
    from dojang.judge.sandbox.shell_jail import enter_shell_jail

    assert untrusted_server
    uid = identity.uid if identity else None
    jail = enter_shell_jail(spec, *owner, uid, user_namespace=user_namespace)
    _give_up_rights(identity)
    connection = socket.socket(fileno=int(sys.argv[3])) if len(sys.argv) > 3 else None
    ShellWorker(channel, jail, limit).serve(connection)


def _give_up_rights(identity: _Identity | None) -> None:
    if identity:
        identity.assume()
    linux.drop_capabilities()
    linux.set_undumpable()
    linux.die_with_parent()  # changing the user id cleared it


def _plain_jail(spec: dict[str, Any], scratch: str) -> Jail:
    linux.subreaper()
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if os.path.isdir("/proc/self") else None
    ruleset = None
    if spec["isolation"] == "landlock":
        readable = [*spec["readable"], spec["headers"], "/dev/urandom", "/dev/random"]
        ruleset = linux.landlock_ruleset([path for path in readable if path], [scratch, "/dev/null"], spec["listable"])
    return Jail(scratch, proc, open_peak(proc), ruleset)


def _stand_by(parent: int, worker: int) -> None:
    poller = select.poll()
    poller.register(parent, select.POLLIN)
    poller.register(sys.stdin.fileno(), select.POLLHUP)  # the pool closes stdin when it no longer needs the worker
    poller.register(os.pidfd_open(worker), select.POLLIN)
    poller.poll()


def _kill_children() -> None:
    """Kill children until none is left: orphans of the worker become children of this process."""
    while True:
        for pid in _children():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []

"""A worker's hold on the warm interpreter: starting it, and having it fork a program."""

import json
import os
import resource
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from dojang.judge.sandbox.bpf import Filter
from dojang.judge.sandbox.start_process import Broken, Setting, Streams, in_force, spawn
from dojang.judge.sandbox.syscalls import number
from dojang.judge.sandbox.vfork_exec import walk

__all__ = ["Interpreter"]

_LOAD = """
import marshal, site, sys
plain = frozenset(sys.modules)
for code in map(bytes.fromhex, sys.argv[1:]):
    exec(marshal.loads(code))
    if "main" not in vars():
        preloaded = Preloaded(plain)
sys.argv[:] = ["main.py"]
main(preloaded)
"""
"""Runs preload.py, which records what zygote.py and its parts import, and then zygote.py."""
_PID = struct.Struct("<i")
_START_S = 60.0
_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_NOFILE: 256,
}
"""The interpreter's own, which its children inherit."""
_CALLS = ("clone", "close", "dup3", "getpid", "prctl", "prlimit64", "seccomp")
"""What it does to make a child."""


class Interpreter:
    """Starts when first needed, and anew when it has died."""

    def __init__(
        self,
        command: Sequence[str],
        scripts: Mapping[str, str],
        paths: Mapping[str, Any],
        directory: str,
        ruleset: int | None,
        filters: tuple[Filter, Filter] | None,
        *,
        files: bool,
    ) -> None:
        self.files = files
        """Whether programs can open files."""
        self._command = command
        self._first = [scripts[name] for name in ("preload", "zygote")]
        self._setup = json.dumps(
            {
                "scripts": {name: code for name, code in scripts.items() if code not in self._first},
                "command": command[0],
                **paths,
                "directory": directory,
                "files": files,
                "filters": [(each.code.hex(), each.self_at) for each in filters or ()],
                "walk": walk().hex(),
                "numbers": {name: number(name) for name in _CALLS},
            }
        ).encode()
        self._ruleset = ruleset
        self._pid = 0
        self._control: socket.socket | None = None
        self._report = -1

    def fork(
        self,
        role: str,
        files: Sequence[int],
        limits: Mapping[int, int],
        *,
        function: str = "",
        arguments: Sequence[str] = (),
        compiled: bool = False,
    ) -> int:
        """The id of a child that plays a role; `files` are stdin, stdout, stderr, the source, and perhaps another.

        What roles there are and what they need is said in zygote.py. `compiled` says that the source is what an
        earlier child compiled.
        """
        size = os.fstat(files[3]).st_size
        request = _request(role, size, tuple(limits.items()), function, tuple(arguments), compiled=compiled)
        try:
            pid = self._ask(request, files)
        except (OSError, struct.error):
            self.stop()
            raise Broken("the warm interpreter died") from None
        if pid <= 0:
            raise Broken("the warm interpreter cannot fork")
        return pid

    def told(self) -> str:
        """What children have said: that a source is no Python, or that something broke before the program began."""
        try:
            return os.read(self._report, 4000).decode(errors="replace")
        except BlockingIOError:
            return ""

    def stop(self) -> None:
        """Let it go; the next request starts another."""
        if self._control is not None:
            self._control.close()
            os.close(self._report)
            self._control = None
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, 9)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = 0

    def _ask(self, request: bytes, files: Sequence[int]) -> int:
        control = self._control or self._start()
        socket.send_fds(control, [request], list(files))
        return int(_PID.unpack(control.recv(_PID.size))[0])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_START_S)
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        environment = {
            "PYTHONHASHSEED": "0",
            "LD_BIND_NOW": "1",  # else every program would look up the same symbols
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin",
        }
        # Its own stack limit is what threads of the programs get; their first thread has a limit of its own.
        setting = Setting(_LIMITS, ruleset=self._ruleset, environment=environment, kept=theirs.fileno())
        try:
            command = [*self._command, "-c", _LOAD, *self._first]
            self._pid = spawn(command[0], command, Streams(null, null, 2), setting)
        finally:
            theirs.close()
            os.close(null)
        self._report, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._control = ours
        with open(told, "wb"):
            socket.send_fds(ours, [self._setup], [told])
        if ours.recv(16) != b"ready":
            raise OSError("not ready")
        return ours


@lru_cache(maxsize=16)  # one test is like the other
def _request(
    role: str,
    size: int,
    limits: tuple[tuple[int, int], ...],
    function: str,
    arguments: tuple[str, ...],
    *,
    compiled: bool,
) -> bytes:
    pairs = [(kind, in_force(kind, value)) for kind, value in limits if _LIMITS.get(kind) != value]
    return json.dumps(
        {
            "role": role,
            "size": size,
            "limits": pairs,
            "function": function,
            "arguments": arguments,
            "compiled": compiled,
            "raised": 3 if arguments else 1,  # a checker, which has arguments, has refused nothing by raising
        }
    ).encode()

"""Client of the warm interpreter (zygote.py): starts it and asks it to fork programs."""

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
from dojang.judge.sandbox.start_process import ProcessOptions, SandboxFailure, Streams, effective_limit, spawn
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
"""Runs preload.py, which records the imports of zygote.py and its parts, and then zygote.py."""
_PID = struct.Struct("<i")
_START_S = 60.0
_LIMITS = {
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 0,
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_NOFILE: 256,
}
"""Rlimits of the interpreter, which its children inherit."""
_CALLS = ("clone", "close", "dup3", "getpid", "prctl", "prlimit64", "seccomp")
"""System calls with which it forks and confines a child."""


class Interpreter:
    """Starts on first use, and again after it died."""

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
        """Whether programs may open files."""
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
        """Fork a child for a role and return its process id. `files` are stdin, stdout, stderr, the source, and
        perhaps another.

        The roles are described in zygote.py. `compiled` says that the source is bytecode from an earlier child.
        """
        size = os.fstat(files[3]).st_size
        request = _request(role, size, tuple(limits.items()), function, tuple(arguments), compiled=compiled)
        try:
            pid = self._ask(request, files)
        except (OSError, struct.error):
            self.stop()
            raise SandboxFailure("the warm interpreter died") from None
        if pid <= 0:
            raise SandboxFailure("the warm interpreter cannot fork")
        return pid

    def read_report(self) -> str:
        """Errors that children reported: a source that does not compile, or a failure before the program started."""
        try:
            return os.read(self._report, 4000).decode(errors="replace")
        except BlockingIOError:
            return ""

    def stop(self) -> None:
        """Stop the interpreter; the next request starts a new one."""
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
            "LD_BIND_NOW": "1",  # otherwise every program would resolve the same symbols
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
            "HOME": "/nonexistent",
            "PATH": "/usr/bin:/bin",
        }
        # Threads of the programs get the interpreter's stack limit; their main thread has its own.
        options = ProcessOptions(_LIMITS, ruleset=self._ruleset, environment=environment, kept=theirs.fileno())
        try:
            command = [*self._command, "-c", _LOAD, *self._first]
            self._pid = spawn(command[0], command, Streams(null, null, 2), options)
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


@lru_cache(maxsize=16)  # tests of one program have equal requests
def _request(
    role: str,
    size: int,
    limits: tuple[tuple[int, int], ...],
    function: str,
    arguments: tuple[str, ...],
    *,
    compiled: bool,
) -> bytes:
    pairs = [(kind, effective_limit(kind, value)) for kind, value in limits if _LIMITS.get(kind) != value]
    return json.dumps(
        {
            "role": role,
            "size": size,
            "limits": pairs,
            "function": function,
            "arguments": arguments,
            "compiled": compiled,
            # Exit code 1 of a checker, which has arguments, means rejected. An exception must not look like that.
            "raised": 3 if arguments else 1,
        }
    ).encode()

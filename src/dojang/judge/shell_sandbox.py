"""A sandbox for shell commands: a private root with this machine's programs, and a working directory.

Needs isolation by namespaces: commands start processes, which only a PID namespace ends for certain.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dojang.core.errors import ConfigError
from dojang.judge.host_capabilities import REMEDIES, HostCapabilities
from dojang.judge.sandbox import messages
from dojang.judge.sandbox.file_tree import FileTree, TreeLimits
from dojang.judge.sandbox.output_ends import cut_middle
from dojang.judge.sandbox.process_group import GroupLimits
from dojang.judge.sandbox.shell_jail import SYSTEM
from dojang.judge.supervised_worker import SupervisedWorker, WorkerFailed
from dojang.programs import Isolation

__all__ = ["FilesTooLarge", "ShellLimits", "ShellOutput", "ShellSandbox", "shell_spec", "visible_paths"]

_START_S = 300.0
"""Longest time without a message, beyond the wall time of a command."""
_CODE = str(Path(__file__).parent / "sandbox")
_OLDEST = (3, 11)
Role = Literal["agent", "verifier", "untrusted"]


class FilesTooLarge(Exception):
    """The files of a sandbox exceed the limits of a copy."""


@dataclass(frozen=True, slots=True)
class ShellLimits:
    """Limits of a sandbox and of each command in it."""

    cpu_s: float = 60.0
    """CPU seconds of a command, of all its processes together."""
    wall_s: float = 120.0
    """Seconds that a command may take, on the clock."""
    memory_mb: int = 1024
    processes: int = 128
    disk_mb: int = 256
    """Size of all files in the sandbox."""
    files_mb: int = 64
    """Size of the files that are copied out of the working directory."""

    def group(self, wall_s: float | None = None) -> dict[str, Any]:
        """Return the limits of a command, as the worker reads them."""
        wall = self.wall_s if wall_s is None else wall_s
        return asdict(GroupLimits(self.cpu_s, wall, self.memory_mb << 20, self.processes, self.disk_mb << 20))

    def tree(self) -> dict[str, Any]:
        """Return the limits of a copy of the working directory."""
        return asdict(TreeLimits(self.files_mb << 20))


@dataclass(frozen=True, slots=True)
class ShellOutput:
    """Result of a command."""

    text: str
    """Standard output and error, in the order they were written; cut in the middle to the length asked for."""
    status: int
    """Exit code; a signal is negative."""
    killed: str = ""
    """Limit for which it was killed; empty if it ended."""


def shell_spec(host: HostCapabilities, role: Role, workdir: str, limits: ShellLimits) -> dict[str, Any]:
    """Return the settings of a sandbox. Raises ConfigError if this machine has none."""
    if host.isolation is not Isolation.NAMESPACES:
        why = host.features[Isolation.NAMESPACES]
        raise ConfigError(
            f"shell commands need isolation namespaces, not {host.isolation}: without them, processes that a command "
            f"leaves behind could change files and rewards later. Remedy: {REMEDIES['namespaces']}"
            + (f" (here: {why})" if why else "")
        )
    if tuple(map(int, host.python.version.split(".")))[:2] < _OLDEST:
        raise ConfigError(f"shell commands need Python 3.11 or newer, not {host.python.version}; set workflow.python")
    if hidden := [path for path in host.python.readable if path.startswith(workdir + "/")]:
        raise ConfigError(f"the working directory {workdir} would hide {hidden[0]}, which Python needs; use another")
    shell = {
        "role": role,
        "workdir": workdir,
        "readable": host.python.readable,
        "python": host.python.command[0],
        "code": _CODE,
        "disk": limits.disk_mb << 20,
    }
    return {"isolation": Isolation.NAMESPACES, "cgroup": not host.features["cgroups"], "shell": shell}


def visible_paths(host: HostCapabilities) -> list[str]:
    """List the files and folders of this machine that commands can read."""
    return [*SYSTEM, *(os.path.realpath(each) for each in (*SYSTEM, *host.python.readable))]


class ShellSandbox(SupervisedWorker):
    """One sandbox. Blocks while a command runs; may be disconnected from another thread."""

    def __init__(
        self, host: HostCapabilities, role: Role, workdir: str, limits: ShellLimits, connection: int | None = None
    ) -> None:
        self.workdir = workdir
        self.limits = limits
        super().__init__(shell_spec(host, role, workdir, limits), _START_S, connection)

    def put(self, folder: str, tree: FileTree) -> None:
        """Replace the files of a folder."""
        self.ask({"verb": "put", "folder": folder, "entries": tree.entries}, tree.contents)

    def get(self, folder: str) -> FileTree:
        """End all processes, then copy the files of a folder. Raises FilesTooLarge if they exceed the limits."""
        answer, contents = self.ask({"verb": "get", "folder": folder, "limits": self.limits.tree()})
        if "too_large" in answer:
            raise FilesTooLarge(answer["too_large"])
        return FileTree(answer["entries"], contents, answer["left_out"])

    def start(
        self, argv: Sequence[str], most_chars: int, wall_s: float | None = None, variables: Mapping[str, str] = {}
    ) -> None:
        """Start a command in the working directory; `finish` returns its result."""
        limits = self.limits.group(wall_s)
        self.channel.settimeout(_START_S + limits["wall_s"])
        request = {
            "verb": "run",
            "argv": list(argv),
            "environment": dict(variables),
            "folder": self.workdir,
            "limits": limits,
            "output": 4 * most_chars,  # bytes of that number of characters
        }
        self._send(request)

    def finish(self, most_chars: int) -> ShellOutput:
        """Wait until the command has ended, and all its processes with it."""
        answer, (head, tail) = self.receive()
        return ShellOutput(cut_middle(head, tail, answer["total"], most_chars), answer["status"], answer["killed"])

    def run(
        self, argv: Sequence[str], most_chars: int, wall_s: float | None = None, variables: Mapping[str, str] = {}
    ) -> ShellOutput:
        """Run a command in the working directory. Raises WorkerFailed if the sandbox failed, not the command."""
        self.start(argv, most_chars, wall_s, variables)
        return self.finish(most_chars)

    def ask(self, request: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> tuple[dict[str, Any], list[bytes]]:
        """Send a request and wait for the answer."""
        self._send(request, pieces)
        return self.receive()

    def _send(self, request: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> None:
        try:
            messages.send(self.channel, request, pieces)
        except (messages.Closed, OSError) as error:
            raise WorkerFailed(f"the sandbox was lost: {error}") from error

"""A verifier's way to run an agent's program: `run-untrusted COMMAND ...`, and modules in another sandbox.

Runs inside a verifier's sandbox: imports the standard library only.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dojang.judge.sandbox import messages
from dojang.judge.sandbox.file_tree import FileTree, TreeLimits, read_tree, write_tree

__all__ = ["HIDDEN", "connect", "main", "run_untrusted"]

_SOCKET = "/run/untrusted/socket"
_LIBRARY = "/opt/dojang/"
_OWN = ("PATH", "HOME", "USER", "PWD", "OLDPWD", "SHLVL", "_", "BASH_ENV", "DOJANG_WORKDIR", "PYTHONPATH")
_OURS = ("PYTHONSAFEPATH", "PYTHONNOUSERSITE", "PYTHONDONTWRITEBYTECODE", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")
HIDDEN = "DOJANG_HIDDEN"
"""Names of variables that only the verifier has, with commas between."""
_MOST = TreeLimits(1 << 29, entries=100_000)
"""Limits of what a verifier sends, which is its own doing."""


def connect(request: Mapping[str, Any], stdin: bytes = b"") -> socket.socket:
    """Ask for a new sandbox with a copy of the working directory, and send it a request."""
    tree = read_tree(_workdir(), _MOST)
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_SOCKET)
    messages.send(connection, {**request, "entries": tree.entries}, [stdin, *tree.contents])
    return connection


def run_untrusted(argv: Sequence[str], stdin: bytes) -> tuple[dict[str, Any], bytes, bytes]:
    """Run a command, then replace the working directory by what it left. Returns how it ended, and its output."""
    folder = os.getcwd()
    inside = folder == _workdir() or folder.startswith(_workdir() + "/")
    request = {
        "modules": False,
        "argv": list(argv),
        "folder": folder if inside else _workdir(),
        "environment": _variables(),
    }
    with connect(request, stdin) as connection:
        answer, (output, errors, *contents) = messages.receive(connection)
    if "entries" in answer:
        write_tree(_workdir(), FileTree(answer["entries"], contents))
    return answer, output, errors


def main() -> NoReturn:
    """`run-untrusted COMMAND ...`: ends as the command does."""
    if len(sys.argv) < 2:
        sys.exit("usage: run-untrusted COMMAND [ARGUMENT ...]")
    stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
    try:
        answer, output, errors = run_untrusted(sys.argv[1:], stdin)
    except (messages.Closed, OSError, ValueError) as error:
        sys.stderr.write(f"run-untrusted: the sandbox failed: {error}\n")
        sys.exit(125)
    for file, data in ((1, output), (2, errors)):
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
    if problem := answer["killed"] or answer.get("too_large"):
        os.write(2, f"run-untrusted: {problem}\n".encode())
        os._exit(124)
    status = int(answer["status"])
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -status)
    os._exit(status if status >= 0 else 128 - status)


def _workdir() -> str:
    return os.environ["DOJANG_WORKDIR"]


def _variables() -> dict[str, str]:
    """Environment variables that the verifier set for the command."""
    hidden = (HIDDEN, *os.environ.get(HIDDEN, "").split(","))
    found = {name: value for name, value in os.environ.items() if name not in (*_OWN, *_OURS, *hidden)}
    paths = [each for each in os.environ.get("PYTHONPATH", "").split(":") if each and not each.startswith(_LIBRARY)]
    return {**found, **({"PYTHONPATH": ":".join(paths)} if paths else {})}

"""Copies of a folder that an untrusted program has filled: regular files, folders and links within the folder.

A copy never leads out of its folder. Special files (FIFOs, sockets, devices), links that lead elsewhere or nowhere, and
names with control characters are left out and listed; a hard link becomes a separate file. Bytecode of Python
(`__pycache__`, `*.pyc`) is left out: it would run in the place of a source file that the program cannot change. The
program must have ended: what is checked here must not change before it is read.

Also used inside sandboxes: imports the standard library only.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["FileTree", "TooLarge", "TreeLimits", "read_tree", "write_tree"]

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NAMED = 8
"""Number of files left out that are named; the rest is counted."""


class TooLarge(Exception):
    """A folder exceeds a limit; the message says which."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """Limits of a copy."""

    size: int
    """Bytes of all files together; a hard link counts as a file."""
    entries: int = 10_000
    depth: int = 64


@dataclass(frozen=True, slots=True)
class FileTree:
    """A copy of a folder, as JSON and binary pieces."""

    entries: Sequence[dict[str, Any]]
    """{path, kind: dir | file | link, executable, target}; parents before their children, links last."""
    contents: Sequence[bytes]
    """Contents of the files, in the order of the entries."""
    left_out: Sequence[str] = ()
    """Files that are not part of the copy, with the reason."""


def read_tree(folder: str, limits: TreeLimits) -> FileTree:
    """Read a folder. Raises TooLarge if it exceeds a limit."""
    root = os.path.realpath(folder)
    entries: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    contents: list[bytes] = []
    left_out: list[str] = []
    total = 0
    for path, mode in _walk(root, limits):
        name = os.path.relpath(path, root)
        if len(entries) + len(links) >= limits.entries:
            raise TooLarge(f"more than {limits.entries} files")
        if _has_control_characters(name):
            left_out.append(f"{name!r}: its name has control characters")
        elif stat.S_ISDIR(mode):
            entries.append({"path": name, "kind": "dir"})
        elif stat.S_ISREG(mode):
            data = _read(path, limits.size - total)
            total += len(data)
            contents.append(data)
            entries.append({"path": name, "kind": "file", "executable": bool(mode & 0o100)})
        elif stat.S_ISLNK(mode) and (target := _inside(path, root)):
            links.append({"path": name, "kind": "link", "target": target})
        else:
            reason = "a link out of the folder, or to nothing" if stat.S_ISLNK(mode) else "not a regular file"
            left_out.append(f"{name!r}: {reason}")
    if len(left_out) > _NAMED:
        left_out[_NAMED:] = [f"{len(left_out) - _NAMED} more"]
    return FileTree([*entries, *links], contents, left_out)


def write_tree(folder: str, tree: FileTree) -> None:
    """Replace the contents of a folder by a copy. Folders that both have stay, as they may be a working directory."""
    folders = {entry["path"] for entry in tree.entries if entry["kind"] == "dir"}
    for top, below, files in os.walk(folder, topdown=False):
        for name in (*files, *below):
            path = os.path.join(top, name)
            if os.path.islink(path) or not os.path.isdir(path):
                os.unlink(path)
            elif os.path.relpath(path, folder) not in folders:
                os.rmdir(path)
    contents = iter(tree.contents)
    for entry in tree.entries:
        name = str(entry["path"])
        if os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
            raise ValueError(f"{name!r} is not a path within a folder")
        path = os.path.join(folder, name)
        if entry["kind"] == "dir":
            os.makedirs(path, exist_ok=True)
        elif entry["kind"] == "link":
            os.symlink(str(entry["target"]), path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(path, flags, 0o755 if entry["executable"] else 0o644), "wb") as file:
                file.write(next(contents))


def _walk(root: str, limits: TreeLimits) -> Iterator[tuple[str, int]]:
    """Yield everything below `root` with its mode, parents first, in a fixed order. Follows no links."""
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        if depth > limits.depth:
            raise TooLarge(f"folders nested more than {limits.depth} deep")
        with suppress(PermissionError):
            os.chmod(folder, 0o700)  # a program may have made it unreadable
        below = []
        for name in sorted(os.listdir(folder)):
            if name == "__pycache__" or name.endswith((".pyc", ".pyo")):
                continue
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            yield path, mode
            # A folder whose name is refused is refused with all it holds.
            if stat.S_ISDIR(mode) and not _has_control_characters(name):
                below.append((path, depth + 1))
        waiting += reversed(below)


def _has_control_characters(name: str) -> bool:
    return any(ord(each) < 32 or ord(each) == 127 for each in name)


def _read(path: str, most: int) -> bytes:
    """Read a regular file of at most `most` bytes, whatever its permissions. A sparse file counts in full."""
    try:
        number = os.open(path, _FLAGS)
    except PermissionError:
        os.chmod(path, 0o600)
        number = os.open(path, _FLAGS)
    with open(number, "rb") as file:
        if os.fstat(number).st_size <= most:
            data = file.read(most + 1)
            if len(data) <= most:
                return data
    raise TooLarge("the files together are too large")


def _inside(path: str, root: str) -> str:
    """Return a target for the link that passes through no other link; empty if it leads out of `root` or nowhere."""
    real = os.path.realpath(path)
    if real == root or not real.startswith(root + "/") or not os.path.lexists(real) or os.path.islink(real):
        return ""
    if not stat.S_ISDIR(mode := os.lstat(real).st_mode) and not stat.S_ISREG(mode):
        return ""
    return os.path.relpath(real, os.path.realpath(os.path.dirname(path)))

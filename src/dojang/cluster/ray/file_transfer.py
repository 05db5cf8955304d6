"""Transfers files between nodes without a shared disk, in chunks through Ray's object store."""

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from dojang.cluster.ray.actors import Actor

__all__ = ["FileTransfer", "fetch_folder", "send_folder"]

_CHUNK_BYTES = 64 << 20
_NAME = "dojang-transfer-"


class FileTransfer:
    """File operations on the node where this object lives."""

    def read_text(self, path: Path) -> str:
        """Text of a file; empty if it cannot be read."""
        try:
            return path.read_text()
        except OSError:
            return ""

    def make_folder(self) -> Path:
        """Makes a temporary folder; removes those of processes that were killed."""
        # Other hosts and containers may see the folder, and have other process IDs: name the host and PID namespace.
        ours = f"{_NAME}{socket.gethostname()}-{Path('/proc/self/ns/pid').stat().st_ino}-"
        for folder in Path(tempfile.gettempdir()).glob(f"{ours}*"):
            owner = folder.name.removeprefix(ours).partition("-")[0]
            if not Path("/proc", owner).exists():
                self.remove(folder)
        return Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}-"))

    def list_files(self, folder: Path) -> list[tuple[str, int]]:
        """Lists all files in a folder with their sizes."""
        return [
            (str(path.relative_to(folder)), path.stat().st_size) for path in sorted(folder.rglob("*")) if path.is_file()
        ]

    def read(self, path: Path, start: int) -> bytes:
        """Reads one chunk of a file."""
        with path.open("rb") as file:
            file.seek(start)
            return file.read(_CHUNK_BYTES)

    def write(self, path: Path, start: int, piece: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.write(piece)

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


async def fetch_folder(actor: Actor, folder: Path, target: Path) -> None:
    """Copies a remote folder to a local one, then removes the remote one."""
    local = FileTransfer()
    for name, size in await actor.call("list_files", folder):
        for start in range(0, max(1, size), _CHUNK_BYTES):
            local.write(target / name, start, await actor.call("read", folder / name, start))
    await actor.call("remove", folder)


async def send_folder(source: Path, targets: Sequence[tuple[Actor, Path]]) -> None:
    """Copies a local folder to remote ones; a chunk that several actors of a node need is transferred once."""
    local = FileTransfer()
    for name, size in local.list_files(source):
        for start in range(0, max(1, size), _CHUNK_BYTES):
            piece: Any = ray.put(local.read(source / name, start))
            for actor, folder in targets:
                await actor.call("write", folder / name, start, piece)

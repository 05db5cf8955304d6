"""Files on their way between machines that share no disk, in pieces through Ray's object store."""

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from dojang.cluster.ray.actors import Actor

__all__ = ["Luggage", "bring", "fetch"]

_PIECE = 64 << 20
_NAME = "dojang-luggage-"


class Luggage:
    """What a process elsewhere can do with files there."""

    def reads(self, path: Path) -> str:
        """What the file says; nothing if there is none."""
        try:
            return path.read_text()
        except OSError:
            return ""

    def unpack(self) -> Path:
        """A new folder for files. Those of processes that were killed with theirs are removed."""
        # Folders may be seen by other machines and containers, where processes have other numbers.
        ours = f"{_NAME}{socket.gethostname()}-{Path('/proc/self/ns/pid').stat().st_ino}-"
        for folder in Path(tempfile.gettempdir()).glob(f"{ours}*"):
            owner = folder.name.removeprefix(ours).partition("-")[0]
            if not Path("/proc", owner).exists():
                self.discard(folder)
        return Path(tempfile.mkdtemp(prefix=f"{ours}{os.getpid()}-"))

    def contents(self, folder: Path) -> list[tuple[str, int]]:
        """Every file in it, with its size."""
        return [
            (str(path.relative_to(folder)), path.stat().st_size) for path in sorted(folder.rglob("*")) if path.is_file()
        ]

    def read(self, path: Path, start: int) -> bytes:
        """A piece of a file."""
        with path.open("rb") as file:
            file.seek(start)
            return file.read(_PIECE)

    def write(self, path: Path, start: int, piece: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.write(piece)

    def discard(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)


async def fetch(actor: Actor, folder: Path, target: Path) -> None:
    """Bring all files of a folder there into a folder here; there they are gone afterwards."""
    here = Luggage()
    for name, size in await actor.do("contents", folder):
        for start in range(0, max(1, size), _PIECE):
            here.write(target / name, start, await actor.do("read", folder / name, start))
    await actor.do("discard", folder)


async def bring(source: Path, targets: Sequence[tuple[Actor, Path]]) -> None:
    """Bring all files of a folder here into folders there; what several need on one machine goes there once."""
    here = Luggage()
    for name, size in here.contents(source):
        for start in range(0, max(1, size), _PIECE):
            piece: Any = ray.put(here.read(source / name, start))
            for actor, folder in targets:
                await actor.do("write", folder / name, start, piece)

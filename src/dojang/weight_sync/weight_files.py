"""Weights in files, for engines that live in other processes.

vLLM takes only whole tensors wherever it has rearranged its own, so somebody must complete an update that brings only
what has changed: either it is done here, from the file of the version that the engine holds (`Parcels`), or where the
engine is (`DeltaParcels`, weight_sync/delta_receiver.py).
"""

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any
from weakref import finalize

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.engine.weight_update import StagedUpdate, mend
from dojang.weight_sync.delta_codec import pack

__all__ = ["DeltaParcels", "Parcels", "read"]

MEMORY = Path("/dev/shm")


def read(files: Sequence[Path]) -> dict[str, Tensor]:
    """All weights in safetensors files."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    return tensors


class Parcels:
    """The folder through which one engine gets its weights, always whole."""

    deltas = False
    """Whether updates from a base go as they are."""

    def __init__(self, folder: Path | None, files: Sequence[Path] = (), *, tied: bool = False) -> None:
        """`files` hold the weights the engine begins with, if they can be read from here; `tied` if what they call the
        head is the embedding once more. Without a folder it is one in memory, which only processes of this machine can
        read."""
        self._left_out = {"lm_head.weight"} if tied else set()
        self._place = folder or (MEMORY if MEMORY.is_dir() else None)
        self._folder: Path | None = None
        self._files = tuple(files)
        self._count = 0

    @property
    def known(self) -> bool:
        """Whether the weights that the engine holds can be read here."""
        return bool(self._files)

    def held(self) -> dict[str, Tensor]:
        """The weights that the engine holds."""
        return {name: tensor for name, tensor in read(self._files).items() if name not in self._left_out}

    def checksum(self) -> str:
        """Of the weights that the engine holds."""
        return checksum(self.held())

    def begin(
        self,
        version: int,
        base: int | None,
        take: Callable[[StagedUpdate, str | None], Awaitable[None]],
        forget: Callable[[], None],
    ) -> StagedUpdate:
        """An update that is checked against what the engine holds, as far as that is known."""
        kind = StagedUpdate if self.known else _First
        return kind(version, base, self._shapes(), take, forget)

    def write(self, update: StagedUpdate) -> Path:
        """All weights as they are after an update."""
        tensors = {} if update.base is None else self.held()
        tensors |= update.tensors
        fresh: dict[str, Tensor] = {}
        for patch in update.patches:
            mend(fresh.setdefault(patch.name, tensors[patch.name].detach().clone()), patch)
        return self._save(update, tensors | fresh)

    def seal(self, update: StagedUpdate, path: Path, expected: str | None) -> dict[str, Any]:
        """What vLLM is told of the file. ValueError if the sum is not the one expected."""
        if expected is not None:
            _compare(update, checksum(read([path])), expected)
        return {"path": str(path), "checksum": expected or ""}

    def keep(self, path: Path) -> None:
        """This is what the engine holds now."""
        for old in path.parent.iterdir():
            if old != path:
                old.unlink()
        self._files = (path,)

    def drop(self, path: Path) -> None:
        """The engine does not hold this."""
        path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)

    def _save(self, update: StagedUpdate, tensors: Mapping[str, Tensor]) -> Path:
        self._count += 1
        path = self._made() / f"{update.version}-{self._count}.safetensors"
        save_file(_apart(tensors), path)
        return path

    def _made(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dojang-weights-", dir=self._place))
            finalize(self, rmtree, self._folder, ignore_errors=True)  # memory of the machine, if nobody closes this
        return self._folder

    def _shapes(self) -> dict[str, Tensor]:
        shapes: dict[str, Tensor] = {}
        for path in self._files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    shapes[name] = torch.empty(file.get_slice(name).get_shape(), device="meta")
        return {name: shape for name, shape in shapes.items() if name not in self._left_out}


class DeltaParcels(Parcels):
    """Updates from a base hold only what has changed, for an engine that keeps what it was sent. No file stays here."""

    deltas = True

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self._weights: dict[str, Tensor] = {}
        """Names and shapes of what the engine keeps."""
        self._sum = self._next = ""
        """The sum of what it keeps, empty if that is not known; and of what it is being sent."""

    @property
    def known(self) -> bool:
        return bool(self._sum)

    def checksum(self) -> str:
        return self._sum

    def write(self, update: StagedUpdate) -> Path:
        """All that has come with an update."""
        return self._save(update, update.tensors if update.base is None else pack(update.tensors, update.patches))

    def seal(self, update: StagedUpdate, path: Path, expected: str | None) -> dict[str, Any]:
        if update.base is None:
            self._next = checksum(update.tensors)
            _compare(update, self._next, expected)
            self._weights = {name: each.to("meta") for name, each in update.tensors.items()}
        elif expected is None:
            raise ValueError(
                f"the update to version {update.version} changes some weights; give the sum of all of them"
            )
        else:
            self._next = expected
        base = "" if update.base is None else self._sum
        return {"path": str(path), "checksum": self._next, "base": base, "keep": True}

    def keep(self, path: Path) -> None:
        path.unlink()
        self._sum = self._next

    def drop(self, path: Path) -> None:
        super().drop(path)
        self._sum = ""

    def _shapes(self) -> dict[str, Tensor]:
        return self._weights


class _First(StagedUpdate):
    """An update of an engine whose weights' names are not known here. It has to check them itself."""

    async def send(self, tensors: Mapping[str, Tensor]) -> None:
        self._check_open()
        self.tensors |= tensors


def _compare(update: StagedUpdate, found: str, expected: str | None) -> None:
    if expected not in (None, found):
        raise ValueError(f"the weights of version {update.version} have the sum {found}, not {expected}")


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As a file can hold them: in main memory, in one piece, and each with memory of its own."""
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        one = tensor.detach().cpu().contiguous()
        pointer = one.untyped_storage().data_ptr()
        plain[name] = one.clone() if pointer in seen else one
        seen.add(pointer)
    return plain

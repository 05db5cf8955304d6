"""Weights as safetensors files, for engines in other processes.

vLLM accepts only full tensors where it has rearranged its own, so a delta must be completed before it is loaded: here,
from the file of the version that the engine holds (`WeightFiles`), or inside vLLM (`DeltaWeightFiles` with
weight_sync/delta_receiver.py).
"""

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any
from weakref import finalize

import torch
from safetensors import safe_open
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.core.lazy_weights import joined, like
from dojang.engine.weight_update import StagedUpdate, apply_patch
from dojang.weight_sync.delta_codec import encode
from dojang.weight_sync.safetensors_file import write_safetensors

__all__ = ["DeltaWeightFiles", "WeightFiles", "read"]

SHARED_MEMORY = Path("/dev/shm")


def read(files: Sequence[Path]) -> dict[str, Tensor]:
    """Read all tensors of safetensors files."""
    tensors: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
    return tensors


class WeightFiles:
    """The folder through which one engine gets its weights, always in full."""

    deltas = False
    """Whether updates with a base are sent as deltas."""

    def __init__(self, folder: Path | None, files: Sequence[Path] = (), *, tied: bool = False) -> None:
        """`files` hold the engine's initial weights, if they can be read here; `tied`: their lm_head is the embedding.
        Without a folder, one in shared memory is used, which only processes of this machine can read."""
        self._left_out = {"lm_head.weight"} if tied else set()
        self._parent = folder or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        self._folder: Path | None = None
        self._files = tuple(files)
        self._count = 0

    @property
    def known(self) -> bool:
        """Whether the weights that the engine holds are known here."""
        return bool(self._files)

    def loaded(self) -> dict[str, Tensor]:
        """Read the weights that the engine holds."""
        return {name: tensor for name, tensor in read(self._files).items() if name not in self._left_out}

    def checksum(self) -> str:
        """Checksum of the weights that the engine holds."""
        return checksum(self.loaded())

    def begin(
        self,
        version: int,
        base: int | None,
        apply: Callable[[StagedUpdate, str | None], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> StagedUpdate:
        """Begin an update, checked against the names and shapes the engine holds, if known."""
        kind = StagedUpdate if self.known else _UncheckedUpdate
        return kind(version, base, self._shapes(), apply, on_end)

    def write(self, update: StagedUpdate) -> Path:
        """Write all weights, as they are after the update, to a file."""
        tensors = joined({} if update.base is None else self.loaded(), update.tensors)
        fresh: dict[str, Tensor] = {}
        for patch in update.patches:
            apply_patch(fresh.setdefault(patch.name, tensors[patch.name].detach().clone()), patch)
        return self._save(update, joined(tensors, fresh))

    def update_info(self, update: StagedUpdate, path: Path, expected: str | None) -> dict[str, Any]:
        """Return vLLM's update info for the file. ValueError if the checksum is not the expected one."""
        if expected is not None:
            _compare(update, checksum(read([path])), expected)
        return {"path": str(path), "checksum": expected or ""}

    def mark_loaded(self, path: Path) -> None:
        """Record that the engine now holds this file, and delete older ones."""
        for old in path.parent.iterdir():
            if old != path:
                old.unlink()
        self._files = (path,)

    def discard(self, path: Path) -> None:
        """Delete the file of a failed update."""
        path.unlink(missing_ok=True)

    def close(self) -> None:
        if self._folder is not None:
            rmtree(self._folder, ignore_errors=True)

    def _save(self, update: StagedUpdate, tensors: Mapping[str, Tensor]) -> Path:
        self._count += 1
        path = self._make_folder() / f"{update.version}-{self._count}.safetensors"
        write_safetensors(path, tensors)
        return path

    def _make_folder(self) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="dojang-weights-", dir=self._parent))
            finalize(self, rmtree, self._folder, ignore_errors=True)  # frees shared memory if close() is never called
        return self._folder

    def _shapes(self) -> dict[str, Tensor]:
        shapes: dict[str, Tensor] = {}
        for path in self._files:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118
                    shapes[name] = torch.empty(file.get_slice(name).get_shape(), device="meta")
        return {name: shape for name, shape in shapes.items() if name not in self._left_out}


class DeltaWeightFiles(WeightFiles):
    """Sends updates with a base as deltas, to an engine that keeps a full copy. Keeps no file here."""

    deltas = True

    def __init__(self, folder: Path | None) -> None:
        super().__init__(folder)
        self._weights: dict[str, Tensor] = {}
        """Names and shapes of the weights the engine holds."""
        self._sum = self._next = ""
        """Checksums of the weights the engine holds (empty if unknown) and of those being sent."""

    @property
    def known(self) -> bool:
        return bool(self._sum)

    def checksum(self) -> str:
        return self._sum

    def write(self, update: StagedUpdate) -> Path:
        """Write the update's tensors and patches to a file."""
        return self._save(update, update.tensors if update.base is None else encode(update.tensors, update.patches))

    def update_info(self, update: StagedUpdate, path: Path, expected: str | None) -> dict[str, Any]:
        if update.base is None:
            self._next = checksum(update.tensors)
            _compare(update, self._next, expected)
            self._weights = {name: like(update.tensors, name).to("meta") for name in update.tensors}
        elif expected is None:
            raise ValueError(
                f"the update to version {update.version} is a delta; pass the checksum of all weights to commit()"
            )
        else:
            self._next = expected
        base = "" if update.base is None else self._sum
        return {"path": str(path), "checksum": self._next, "base": base, "keep": True}

    def mark_loaded(self, path: Path) -> None:
        path.unlink()
        self._sum = self._next

    def discard(self, path: Path) -> None:
        super().discard(path)
        self._sum = ""

    def _shapes(self) -> dict[str, Tensor]:
        return self._weights


class _UncheckedUpdate(StagedUpdate):
    """An update of an engine with unknown weight names; the engine checks them itself."""

    async def send(self, tensors: Mapping[str, Tensor]) -> None:
        self._check_open()
        self.tensors = joined(self.tensors, tensors)


def _compare(update: StagedUpdate, found: str, expected: str | None) -> None:
    if expected not in (None, found):
        raise ValueError(f"the weights of version {update.version} have checksum {found}, not {expected}")

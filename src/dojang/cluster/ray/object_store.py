"""Weights in Ray's object store.

They are put once, as numpy arrays; deltas and LoRA factors as the bytes of a pack. All processes of a node share that
memory; an engine copies when it loads them. Only what an engine reads goes to another node. Arrays from the store are
read-only.
"""

import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from dojang.protocols import Changes, Factors
from dojang.weight_sync.pack import Pack, encode
from dojang.weight_sync.pack_receiver import LoraBase

__all__ = ["LatestWeights", "PublishedWeights", "ReceivedWeights", "get_weights", "put_pack", "put_weights"]

Arrays = dict[str, tuple[np.ndarray[Any, Any], str]]


def put_weights(tensors: Mapping[str, Tensor]) -> Any:
    """Puts weights into the object store; returns the object reference."""
    return ray.put({name: _array(tensor) for name, tensor in tensors.items()})


def put_pack(pack: Pack) -> Any:
    """Puts a pack into the object store; returns the object reference of its bytes."""
    return ray.put(np.frombuffer(encode(pack), np.uint8))


def get_weights(arrays: Arrays) -> dict[str, Tensor]:
    """Tensors of weights from the object store, without a copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # they are only read
        return {name: torch.from_numpy(array).view(getattr(torch, dtype)) for name, (array, dtype) in arrays.items()}


def _array(tensor: Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """Array and dtype of a tensor; bfloat16, which numpy lacks, as int16 bits."""
    local = tensor.detach().cpu().contiguous()
    dtype = str(local.dtype).removeprefix("torch.")
    return (local.view(torch.int16) if dtype == "bfloat16" else local).numpy(), dtype


@dataclass(frozen=True)
class PublishedWeights:
    """Object references of one version."""

    whole: Any
    """All weights; with `factors`, the base weights of LoRA, which all versions share."""
    base: int | None = None
    delta: Any = None
    """A pack with the changes since version `base`."""
    factors: Any = None
    """A pack with LoRA factors."""


Merge = Callable[[int], Awaitable[Any]]
"""Puts a version with its LoRA factors merged into the object store; returns the object reference."""


class LatestWeights:
    """The latest versions of the weights, in the object store."""

    def __init__(self, keep: int = 1) -> None:
        """`keep`: number of versions to keep."""
        self._keep = keep
        self._references: dict[int, PublishedWeights] = {}
        """In the order of publication."""
        self._merge: Merge | None = None

    def announce(self, version: int, weights: PublishedWeights, merge: Merge | None = None) -> None:
        """Adds the latest version, and drops the oldest ones. `merge` is for engines that cannot add LoRA factors."""
        self._merge = merge
        self._references.pop(version, None)
        self._references[version] = weights
        for old in list(self._references)[: -self._keep]:
            del self._references[old]

    async def merged(self, version: int) -> Any:
        """Object reference of all weights of a version with LoRA factors, merged by the trainer."""
        assert self._merge is not None, "factors are announced with a way to merge them"
        return await self._merge(version)

    def newest(self) -> int:
        """Latest version."""
        if not self._references:
            raise LookupError("nothing has been published yet")
        return max(self._references)

    def find(self, version: int) -> PublishedWeights:
        """Object references of a version."""
        if version not in self._references:
            held = ", ".join(map(str, self._references)) or "none"
            raise LookupError(f"weights version {version} is not held; the store has {held}")
        return self._references[version]


class ReceivedWeights:
    """A WeightStore in an engine's actor: holds a received version until the engine has loaded it."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device` merges LoRA factors; None: a CPU."""
        self._version = -1
        self._tensors: Mapping[str, Tensor] = {}
        self._pack: Pack | None = None
        self.lora_base = LoraBase(device)
        """Base weights of LoRA, in the memory of the object store."""

    def publish(self, version: int, tensors: Mapping[str, Tensor], factors: Factors | None = None) -> None:
        assert not factors, "factors come as packs"
        self.release()
        self._version, self._tensors = version, tensors

    def receive(self, pack: Pack) -> None:
        """Holds a delta instead of full weights, or the weights with LoRA factors merged. ValueError if the factors do
        not become the weights that were published."""
        self.release()
        tensors = self.lora_base.merge(pack) if pack.kind == "factors" else {}
        self._version, self._tensors, self._pack = pack.version, tensors, pack

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version != self._version or not self._tensors:
            raise LookupError(f"weights version {version} has not arrived")
        return self._tensors

    def changes(self, base: int, version: int) -> Changes | None:
        pack = self._pack
        if pack is not None and pack.kind == "factors" and pack.version == version:
            return Changes(self._tensors, (), pack.checksum)
        if pack is None or (pack.base, pack.version) != (base, version):
            return None
        return Changes(pack.tensors, pack.patches, pack.checksum)

    def release(self) -> None:
        """Drops the weights after the engine has loaded them."""
        self._version, self._tensors, self._pack = -1, {}, None

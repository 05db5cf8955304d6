"""Weights in Ray's object store.

They are put there once, as plain arrays, and every process of a machine looks at the same memory: nothing is copied
until an engine takes them over. Ray's arrays cannot be written to.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from dojang.protocols import Changes, Factors

__all__ = ["Held", "Shared", "lay_down", "pick_up"]

Arrays = dict[str, tuple[np.ndarray[Any, Any], str]]


def lay_down(tensors: Mapping[str, Tensor]) -> Any:
    """Put weights into the store."""
    return ray.put({name: _array(tensor) for name, tensor in tensors.items()})


def pick_up(arrays: Arrays) -> dict[str, Tensor]:
    """What was put there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nobody will
        return {name: torch.from_numpy(array).view(getattr(torch, dtype)) for name, (array, dtype) in arrays.items()}


def _array(tensor: Tensor) -> tuple[np.ndarray[Any, Any], str]:
    """numpy knows no bfloat16: its bits go as whole numbers."""
    here = tensor.detach().cpu().contiguous()
    dtype = str(here.dtype).removeprefix("torch.")
    return (here.view(torch.int16) if dtype == "bfloat16" else here).numpy(), dtype


class Shared:
    """The newest weights: where they are in the store."""

    def __init__(self) -> None:
        self._version: int | None = None
        self._reference: Any = None

    def announce(self, version: int, reference: Any) -> None:
        """These are the newest now."""
        self._version, self._reference = version, reference

    def newest(self) -> int:
        """The version there is."""
        if self._version is None:
            raise LookupError("nothing has been published yet")
        return self._version

    def reference(self, version: int) -> Any:
        """Where they are."""
        if version != self._version:
            raise LookupError(f"weights version {version} is not held; the store has {self._version}")
        return self._reference


class Held:
    """A WeightStore that shows an engine what has come for it, and keeps it no longer than that takes."""

    def __init__(self) -> None:
        self._version = -1
        self._tensors: Mapping[str, Tensor] = {}

    def publish(self, version: int, tensors: Mapping[str, Tensor], factors: Factors | None = None) -> None:
        assert not factors, "what trainers elsewhere publish has them added already"
        self._version, self._tensors = version, tensors

    def fetch(self, version: int) -> Mapping[str, Tensor]:
        if version != self._version or not self._tensors:
            raise LookupError(f"weights version {version} have not come")
        return self._tensors

    def changes(self, base: int, version: int) -> Changes | None:
        return None

    def forget(self) -> None:
        """What has been taken over need not be held."""
        self._tensors = {}

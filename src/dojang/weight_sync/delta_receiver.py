"""What a process of vLLM keeps of its weights, so that it can be sent deltas.

vLLM rearranges its own tensors and takes only whole ones, so the whole weights are kept beside them, in main memory: in
each process, for they end with it, which a file that processes share would not.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.weight_sync.delta_codec import apply
from dojang.weight_sync.weight_files import read

__all__ = ["Kept"]


class Kept:
    """The weights of one process, if it is to keep them: deltas bring only what has changed since."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._sum = ""

    def take(self, path: Path, expected: str, *, base: str, keep: bool, device: torch.device) -> Mapping[str, Tensor]:
        """All weights after the update in a file; `base` is the sum of those it begins from, empty if it is whole.
        ValueError if they are not those kept, or if the sum afterwards is not the one expected. Sums are computed on
        `device`."""
        if base and base != self._sum:
            raise ValueError(f"{path} begins from weights with the sum {base}; kept are {self._sum or 'none'}")
        tensors, self._tensors, self._sum = self._tensors, {}, ""  # nothing is kept if this fails
        if base:
            apply(read([path]), tensors)
        else:
            tensors.clear()
            # The file will be gone, and what is mapped from it may be with it.
            tensors = {name: each.clone() if keep else each for name, each in read([path]).items()}
        if expected and (found := checksum(tensors, device)) != expected:
            raise ValueError(f"with {path} the weights have the sum {found}, not {expected}")
        if keep:
            self._tensors, self._sum = tensors, expected
        return tensors

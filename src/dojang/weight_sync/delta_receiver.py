"""Receives weights inside a vLLM process, so that it can be sent deltas.

vLLM rearranges its own tensors and accepts only full ones, so each process keeps a full copy in main memory. The copy
ends with its process; a file shared by the processes would outlive them.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.weight_sync.delta_codec import apply_delta
from dojang.weight_sync.weight_files import read

__all__ = ["DeltaReceiver"]


class DeltaReceiver:
    """The full weights of one process, to which deltas are applied."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._sum = ""

    def receive(
        self, path: Path, expected: str, *, base: str, keep: bool, device: torch.device
    ) -> Mapping[str, Tensor]:
        """Read an update from a file and return all weights after it. `base` is the checksum of the weights a delta
        starts from, empty for a full update. ValueError if these weights are not held, or if the checksum afterwards is
        not the expected one. Checksums are computed on `device`."""
        if base and base != self._sum:
            raise ValueError(f"{path} starts from weights with checksum {base}; held are {self._sum or 'none'}")
        tensors, self._tensors, self._sum = self._tensors, {}, ""  # a failure leaves nothing held
        if base:
            apply_delta(read([path]), tensors)
        else:
            tensors.clear()
            # The file is deleted afterwards, and its memory mapping may go with it.
            tensors = {name: each.clone() if keep else each for name, each in read([path]).items()}
        if expected and (found := checksum(tensors, device)) != expected:
            raise ValueError(f"after {path} the weights have checksum {found}, not {expected}")
        if keep:
            self._tensors, self._sum = tensors, expected
        return tensors

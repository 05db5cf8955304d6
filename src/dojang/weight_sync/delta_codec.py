"""Only the numbers that have changed, as a safetensors file has them.

    whole:NAME    all numbers of a weight
    gap:NAME      how far each changed number is from the one before, or the first from the beginning
    value:NAME    what they become

A gap takes one byte or two, whichever makes the file smaller; the largest number it can be means "go on, nothing
changes here". Values are the new ones, not differences. Nothing is compressed: it would take longer than it saves.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dojang.engine.weight_update import mend
from dojang.protocols import Patch

__all__ = ["apply", "gaps", "pack", "places"]

_KINDS = (torch.uint8, torch.uint16)


def pack(tensors: Mapping[str, Tensor], patches: Iterable[Patch]) -> dict[str, Tensor]:
    """As the file has them. Of what is patched twice, the last counts; what is patched must not come whole too."""
    packed = {f"whole:{name}": tensor for name, tensor in tensors.items()}
    by_name: dict[str, list[Patch]] = defaultdict(list)
    for patch in patches:
        by_name[patch.name].append(patch)
    for name, some in by_name.items():
        index_N, value_N = _ordered(some)
        packed[f"gap:{name}"], packed[f"value:{name}"] = gaps(index_N), value_N
    return packed


def gaps(index_N: Tensor) -> Tensor:
    """Rising places as gaps."""
    gap_N = torch.diff(index_N.long(), prepend=index_N.new_zeros(1, dtype=torch.int64))
    last = {kind: torch.iinfo(kind).max for kind in _KINDS}
    lengths = {kind: len(gap_N) + int((gap_N // last[kind]).sum()) for kind in _KINDS}
    kind = min(_KINDS, key=lambda kind: lengths[kind] * kind.itemsize)
    found_M = torch.full((lengths[kind],), last[kind])
    found_M[(gap_N // last[kind] + 1).cumsum(0) - 1] = gap_N % last[kind]
    return found_M.to(kind)


def places(gap_M: Tensor) -> Tensor:
    """What `gaps` was given."""
    wide_M = gap_M.long()
    return wide_M.cumsum(0)[wide_M != torch.iinfo(gap_M.dtype).max]


def apply(packed: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Change weights, in place, as what was packed says. ValueError if it is not for these."""
    for key, tensor in packed.items():
        kind, _, name = key.partition(":")
        if name not in weights:
            raise ValueError(f"a delta names {name}, and there is no such weight")
        if kind == "whole":
            if tensor.shape != weights[name].shape:
                raise ValueError(f"{name} comes as {list(tensor.shape)}, and is {list(weights[name].shape)}")
            weights[name].copy_(tensor)
        elif kind == "gap":
            index_N = places(tensor)
            if len(index_N) and int(index_N[-1]) >= weights[name].numel():
                raise ValueError(f"a delta names a place outside of {name}")
            mend(weights[name], Patch(name, index_N, packed[f"value:{name}"]))


def _ordered(patches: list[Patch]) -> tuple[Tensor, Tensor]:
    index_N = torch.cat([each.index_N.cpu().long() for each in patches])
    value_N = torch.cat([each.value_N.cpu() for each in patches])
    if bool((index_N[1:] > index_N[:-1]).all()):
        return index_N, value_N
    index_N, order_N = index_N.sort(stable=True)
    last_N = torch.ones(len(index_N), dtype=torch.bool)
    last_N[:-1] = index_N[1:] != index_N[:-1]
    return index_N[last_N], value_N[order_N][last_N]

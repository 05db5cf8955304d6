"""Delta encoding: only the weights' changed elements, as tensors of a safetensors file.

    whole:NAME    all elements of a weight
    gap:NAME      distance of each changed element from the one before; the first from the start
    value:NAME    new values of the changed elements

A gap takes one or two bytes, whichever makes the file smaller; the largest value means "skip this far, no change here".
Values are new values, not differences. Nothing is compressed: that would take longer than it saves.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from dojang.engine.weight_update import apply_patch
from dojang.protocols import Patch

__all__ = ["apply_delta", "encode", "gaps", "indices"]

_KINDS = (torch.uint8, torch.uint16)


def encode(tensors: Mapping[str, Tensor], patches: Iterable[Patch]) -> dict[str, Tensor]:
    """Encode full tensors and patches. If an element is patched twice, the last value counts; a weight is either full
    or patched."""
    packed = {f"whole:{name}": tensor for name, tensor in tensors.items()}
    by_name: dict[str, list[Patch]] = defaultdict(list)
    for patch in patches:
        by_name[patch.name].append(patch)
    for name, some in by_name.items():
        index_N, value_N = _ordered(some)
        packed[f"gap:{name}"], packed[f"value:{name}"] = gaps(index_N), value_N
    return packed


def gaps(index_N: Tensor) -> Tensor:
    """Encode increasing indices as gaps."""
    gap_N = torch.diff(index_N.long(), prepend=index_N.new_zeros(1, dtype=torch.int64))
    last = {kind: torch.iinfo(kind).max for kind in _KINDS}
    lengths = {kind: len(gap_N) + int((gap_N // last[kind]).sum()) for kind in _KINDS}
    kind = min(_KINDS, key=lambda kind: lengths[kind] * kind.itemsize)
    found_M = torch.full((lengths[kind],), last[kind])
    found_M[(gap_N // last[kind] + 1).cumsum(0) - 1] = gap_N % last[kind]
    return found_M.to(kind)


def indices(gap_M: Tensor) -> Tensor:
    """Decode gaps to indices."""
    wide_M = gap_M.long()
    return wide_M.cumsum(0)[wide_M != torch.iinfo(gap_M.dtype).max]


def apply_delta(packed: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Apply an encoded delta to weights, in place. ValueError if it does not match them."""
    for key, tensor in packed.items():
        kind, _, name = key.partition(":")
        if name not in weights:
            raise ValueError(f"the delta contains {name}, which is not a weight of the engine")
        if kind == "whole":
            if tensor.shape != weights[name].shape:
                raise ValueError(
                    f"{name} was sent with shape {list(tensor.shape)}; the engine has {list(weights[name].shape)}"
                )
            weights[name].copy_(tensor)
        elif kind == "gap":
            index_N = indices(tensor)
            if len(index_N) and int(index_N[-1]) >= weights[name].numel():
                raise ValueError(f"the delta has an index outside of {name}")
            apply_patch(weights[name], Patch(name, index_N, packed[f"value:{name}"]))


def _ordered(patches: list[Patch]) -> tuple[Tensor, Tensor]:
    index_N = torch.cat([each.index_N.cpu().long() for each in patches])
    value_N = torch.cat([each.value_N.cpu() for each in patches])
    if bool((index_N[1:] > index_N[:-1]).all()):
        return index_N, value_N
    index_N, order_N = index_N.sort(stable=True)
    last_N = torch.ones(len(index_N), dtype=torch.bool)
    last_N[:-1] = index_N[1:] != index_N[:-1]
    return index_N[last_N], value_N[order_N][last_N]

"""Delta encoding: only the weights' changed elements, as tensors of a safetensors file.

    whole:NAME    all elements of a weight
    gap:NAME      distance of each changed element from the one before; the first from the start
    value:NAME    new values of the changed elements

A gap takes one or two bytes, whichever makes the file smaller; the largest value means "skip this far, no change here".
Values are new values, not differences. Nothing is compressed: that would take longer than it saves.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dojang.core.checksum import bits
from dojang.core.lazy_weights import LazyWeights, joined
from dojang.engine.weight_update import apply_patch
from dojang.protocols import Patch

__all__ = ["Positions", "apply_delta", "changes_at", "compare", "encode", "gaps", "indices", "union"]

_KINDS = (torch.uint8, torch.uint16)
_CHUNK = 1 << 20
"""Elements compared at a time on a CPU: they should fit its caches."""

Positions = Mapping[str, Tensor | None]
"""Gaps of the changed elements of each changed weight; None if most of its elements changed."""


def compare(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Positions | None:
    """Compare two versions bit by bit; None if names, shapes or dtypes differ."""
    if before.keys() != after.keys():
        return None
    positions: dict[str, Tensor | None] = {}
    for name, new in after.items():
        old = before[name]
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            return None
        index_N = _changed(bits(old), bits(new))
        if index_N is None or len(index_N):
            positions[name] = None if index_N is None else gaps(index_N).cpu()
    return positions


def union(chain: Sequence[Positions]) -> Positions:
    """Return the elements that changed anywhere in a chain of versions."""
    if len(chain) == 1:
        return chain[0]
    joined: dict[str, Tensor | None] = {}
    for name in dict.fromkeys(name for each in chain for name in each):
        some = [each[name] for each in chain if name in each]
        index = [indices(gap_M) for gap_M in some if gap_M is not None]
        joined[name] = gaps(torch.unique(torch.cat(index))) if len(index) == len(some) else None
    return joined


def changes_at(positions: Positions, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[Patch]]:
    """Read the values at these positions: full tensors, and patches on the CPU. A weight with most elements changed is
    sent in full, because its indices would take more than the values."""
    tensors: dict[str, Tensor] = {}
    patches: list[Patch] = []
    for name, gap_M in positions.items():
        weight = weights[name]
        index_N = None if gap_M is None else indices(gap_M)
        if index_N is None or 2 * len(index_N) > weight.numel():
            tensors[name] = weight
        else:
            small = torch.int32 if weight.numel() < 2**31 else torch.int64
            value_N = weight.flatten()[index_N.to(weight.device)].cpu()
            patches.append(Patch(name, index_N.to(small), value_N))
    return tensors, patches


def _changed(old_N: Tensor, new_N: Tensor) -> Tensor | None:
    """Return the indices of elements that differ; None if most do."""
    if new_N.device.type != "cpu":
        changed_N = old_N != new_N
        return None if 2 * int(changed_N.count_nonzero()) > len(new_N) else changed_N.nonzero().flatten()
    old, new = old_N.numpy(), new_N.numpy()
    found, count = [np.zeros(0, np.int64)], 0
    for start in range(0, len(new), _CHUNK):  # numpy finds them several times faster than torch
        chunk = slice(start, start + _CHUNK)
        found.append(np.flatnonzero(old[chunk] != new[chunk]) + start)
        count += len(found[-1])
        if 2 * count > len(new):
            return None
    return torch.from_numpy(np.concatenate(found))


def encode(tensors: Mapping[str, Tensor], patches: Iterable[Patch]) -> LazyWeights:
    """Encode full tensors and patches. If an element is patched twice, the last value counts; a weight is either full
    or patched."""
    full = LazyWeights({f"whole:{name}": weight for name, weight in joined(tensors).weights.items()})
    packed: dict[str, Tensor] = {}
    by_name: dict[str, list[Patch]] = defaultdict(list)
    for patch in patches:
        by_name[patch.name].append(patch)
    for name, some in by_name.items():
        index_N, value_N = _ordered(some)
        packed[f"gap:{name}"], packed[f"value:{name}"] = gaps(index_N), value_N
    return joined(full, packed)


def gaps(index_N: Tensor) -> Tensor:
    """Encode increasing indices as gaps."""
    gap_N = torch.diff(index_N.long(), prepend=index_N.new_zeros(1, dtype=torch.int64))
    last = {kind: torch.iinfo(kind).max for kind in _KINDS}
    lengths = {kind: len(gap_N) + int((gap_N // last[kind]).sum()) for kind in _KINDS}
    kind = min(_KINDS, key=lambda kind: lengths[kind] * kind.itemsize)
    found_M = torch.full((lengths[kind],), last[kind], device=gap_N.device)
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

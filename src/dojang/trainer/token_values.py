"""Values of single tokens: computed for samples on request, and recorded in the forward passes of updates."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dojang.protocols import TokenValues
from dojang.trainer.packing import MicroBatch
from dojang.trainer.process_group import ProcessGroup
from dojang.types import Group, Sample

__all__ = ["TokenRecorder", "per_token"]

_Key = tuple[int, int, str, int]
"""Prompt index, index, role and turn of a sample."""


class TokenRecorder:
    """Keeps log-probs and entropies of the forward passes until they are taken. The first pass of a sample counts: in
    later epochs the weights have moved on."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._keys: dict[int, _Key] = {}
        self._seen: set[_Key] = set()
        self._parts: list[tuple[list[tuple[_Key, int]], Tensor]] = []
        """Keys and lengths of the samples of a micro-batch, and its values, [2, B, T]."""
        self._device = torch.device("cpu")

    def begin(self, groups: Sequence[Group]) -> None:
        """Names the samples of the next forward passes."""
        if self._enabled:
            self._keys = {
                id(each): (group.prompt_index, each.index, each.role, each.turn)
                for group in groups
                for each in group.samples
            }

    def add(self, batch: MicroBatch, logp_BT: Tensor, entropy_BT: Tensor) -> None:
        """Records a forward pass. The copy from a GPU is asynchronous, to pinned memory."""
        if not self._enabled or batch.idle:
            return
        samples = [(self._keys[id(each)], each.response_length) for each in batch.samples]
        if self._seen.issuperset(key for key, _ in samples):
            return
        self._device = logp_BT.device
        self._seen.update(key for key, _ in samples)
        values_2BT = torch.stack((logp_BT.detach(), entropy_BT.detach())).to(torch.float32)
        self._parts.append((samples, values_2BT.to("cpu", non_blocking=True)))

    def take(self, ranks: ProcessGroup) -> list[TokenValues]:
        """Returns the values of all samples since the last call, from all ranks. All ranks must call this."""
        if not self._enabled:
            return []
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()  # the copies must have arrived
        mine: dict[_Key, TokenValues] = {}
        for samples, values_2BT in self._parts:
            for (key, length), row_2T in zip(samples, values_2BT.unbind(1), strict=True):
                logprobs, entropies = row_2T[:, :length].numpy().copy()
                mine.setdefault(key, TokenValues(*key, logprobs, entropies))
        self._keys, self._seen, self._parts = {}, set(), []
        found = {key: values for each in ranks.gather(mine) for key, values in each.items()}
        return [found[key] for key in sorted(found)]


def per_token(
    samples: Sequence[Sample],
    split: Callable[[Sequence[Sample]], Iterable[MicroBatch]],
    compute: Callable[[MicroBatch], Tensor],
    ranks: ProcessGroup,
) -> list[tuple[float, ...]]:
    """Values of `compute` for the tokens of each sample; 0 outside the mask."""
    places = {id(sample): place for place, sample in enumerate(samples)}
    mine: dict[int, tuple[float, ...]] = {}
    with torch.no_grad():
        for batch in split([sample for sample in samples if sample.mask.any()]):
            for sample, row in zip(batch.samples, compute(batch).tolist(), strict=True):
                found_T = sample.at_mask(row[: sample.response_length])
                mine[places[id(sample)]] = tuple(found_T.tolist())
    found = {place: values for each in ranks.gather(mine) for place, values in each.items()}
    return [found.get(place, (0.0,) * len(sample.tokens)) for place, sample in enumerate(samples)]

"""Staged weight update: tensors are collected and checked first, then applied all at once.

An invalid update fails before it changes any weight. Afterwards only a checksum mismatch is found, and errors of lazy
weights: these are checked by their shapes, and made while they are applied, one at a time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.core.lazy_weights import LazyWeights, joined, like
from dojang.protocols import Patch, WeightStore, WeightUpdate

__all__ = ["StagedUpdate", "apply_patch", "apply_update", "load_weights", "send_and_commit"]

_HEAD = "lm_head.weight"

logger = logging.getLogger(__name__)


class Begin(Protocol):
    """ServingEngine.begin."""

    async def __call__(self, version: int, *, base: int | None = None) -> WeightUpdate: ...


class StagedUpdate:
    """A WeightUpdate that collects tensors and patches until `commit` applies them."""

    def __init__(
        self,
        version: int,
        base: int | None,
        weights: Mapping[str, Tensor],
        apply: Callable[["StagedUpdate", str | None], Awaitable[None]],
        on_end: Callable[[], None],
    ) -> None:
        self.version, self.base = version, base
        self.tensors: Mapping[str, Tensor] = {}
        """Full tensors that were sent. Read one at a time: those of LoRA may be merged when they are read."""
        self.patches: list[Patch] = []
        self._weights = weights
        self._apply, self._on_end = apply, on_end
        self._ended = False

    async def send(self, tensors: Mapping[str, Tensor]) -> None:
        self._check_open()
        if _HEAD in tensors and _HEAD not in self._weights:  # some checkpoints list it although it is tied
            tensors = LazyWeights({name: each for name, each in joined(tensors).weights.items() if name != _HEAD})
        for name in tensors:
            found, expected = like(tensors, name).shape, self._named(name).shape
            if found != expected:
                raise ValueError(f"{name} was sent with shape {list(found)}; the engine has {list(expected)}")
        self.tensors = joined(self.tensors, tensors)

    async def patch(self, patches: Sequence[Patch]) -> None:
        self._check_open()
        if self.base is None:
            raise ValueError("patches need an update with a base version: begin(version, base=...)")
        for each in patches:
            size = self._named(each.name).numel()
            if each.index_N.shape != each.value_N.shape or each.index_N.dim() != 1:
                raise ValueError(
                    f"{each.name}: a patch has {list(each.index_N.shape)} indices and {list(each.value_N.shape)} values"
                )
            if len(each.index_N) and not 0 <= int(each.index_N.min()) <= int(each.index_N.max()) < size:
                raise ValueError(f"{each.name} has {size} elements, and a patch has an index outside")
        self.patches += patches

    async def commit(self, checksum: str | None = None) -> None:
        self._check_open()
        if self.base is None and (missing := sorted(set(self._weights) - set(self.tensors))):
            raise ValueError(f"a full update must send every weight; {len(missing)} are missing, first {missing[0]}")
        self._ended = True
        try:
            await self._apply(self, checksum)
        finally:
            self._on_end()

    async def give_up(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end()

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError(f"the update to version {self.version} has already ended")

    def _named(self, name: str) -> Tensor:
        if name not in self._weights:
            raise ValueError(f"the engine has no weight called {name}")
        return self._weights[name]


async def load_weights(begin: Begin, weights: WeightStore, version: int, *, base: int | None) -> bool:
    """Load a version from a weight store: the changes since `base`, if given and possible, else full weights. Returns
    whether full weights were loaded. The store computes in a thread: it may have to merge or compare weights."""
    if base is not None:
        try:
            if (changes := await asyncio.to_thread(weights.changes, base, version)) is None:
                raise ValueError(f"the changes since version {base} are not available")
            await send_and_commit(await begin(version, base=base), changes.tensors, changes.patches, changes.checksum)
        except (RuntimeError, ValueError) as error:
            logger.warning("sending the full weights of version %d instead of a delta: %s", version, error)
        else:
            return False
    tensors = await asyncio.to_thread(weights.fetch, version)
    await send_and_commit(await begin(version), tensors)
    return True


async def send_and_commit(
    update: WeightUpdate,
    tensors: Mapping[str, Tensor],
    patches: Sequence[Patch] = (),
    checksum: str | None = None,
) -> None:
    """Send tensors and patches and commit; give the update up on any error."""
    try:
        await update.send(tensors)
        if patches:
            await update.patch(patches)
        await update.commit(checksum)
    except BaseException:
        await update.give_up()
        raise


def apply_patch(target: Tensor, patch: Patch) -> None:
    """Write a patch's values into a weight, in place."""
    index_N = patch.index_N.to(target.device, torch.int64)
    target.view(-1)[index_N] = patch.value_N.to(target.device, target.dtype)


@torch.no_grad()
def apply_update(update: StagedUpdate, weights: Mapping[str, Tensor], expected: str | None) -> None:
    """Write an update into the weights. ValueError if their checksum afterwards is not the expected one."""
    for name in update.tensors:  # not .items(): it would hold one tensor while the next one is made
        weights[name].copy_(update.tensors[name])
    for patch in update.patches:
        apply_patch(weights[patch.name], patch)
    for device in {tensor.device for tensor in weights.values() if tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()  # the sender's tensors may be freed after this
    if expected is not None and (found := checksum(weights)) != expected:
        raise ValueError(f"after the update to version {update.version} the checksum is {found}, expected {expected}")

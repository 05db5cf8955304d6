"""Weights on their way into an engine: collected and checked first, then taken over all at once.

What is wrong with an update is found before it touches anything, but for a sum that does not agree at the end.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.protocols import Patch

__all__ = ["StagedUpdate", "bring", "mend", "write"]


class StagedUpdate:
    """A WeightUpdate that keeps what is sent until `commit` hands it over."""

    def __init__(
        self,
        version: int,
        base: int | None,
        weights: Mapping[str, Tensor],
        take: Callable[["StagedUpdate", str | None], Awaitable[None]],
        forget: Callable[[], None],
    ) -> None:
        self.version, self.base = version, base
        self.tensors: dict[str, Tensor] = {}
        self.patches: list[Patch] = []
        self._weights = weights
        self._take, self._forget = take, forget
        self._over = False

    async def send(self, tensors: Mapping[str, Tensor]) -> None:
        self._check_open()
        for name, tensor in tensors.items():
            if name == "lm_head.weight" and name not in self._weights:
                continue  # some checkpoints name it although it is the embedding
            expected = self._named(name).shape
            if tensor.shape != expected:
                raise ValueError(f"{name} comes as {list(tensor.shape)}, and the engine's is {list(expected)}")
            self.tensors[name] = tensor

    async def patch(self, patches: Sequence[Patch]) -> None:
        self._check_open()
        if self.base is None:
            raise ValueError("numbers can be changed only in an update that began from a base version")
        for each in patches:
            size = self._named(each.name).numel()
            if each.index_N.shape != each.value_N.shape or each.index_N.dim() != 1:
                raise ValueError(
                    f"{each.name}: {list(each.index_N.shape)} places for {list(each.value_N.shape)} numbers"
                )
            if len(each.index_N) and not 0 <= int(each.index_N.min()) <= int(each.index_N.max()) < size:
                raise ValueError(f"{each.name} has {size} numbers, and a patch names a place outside")
        self.patches += patches

    async def commit(self, checksum: str | None = None) -> None:
        self._check_open()
        if self.base is None and (missing := sorted(set(self._weights) - set(self.tensors))):
            raise ValueError(f"a full update must bring every weight; {len(missing)} are missing, first {missing[0]}")
        self._over = True
        try:
            await self._take(self, checksum)
        finally:
            self._forget()

    async def give_up(self) -> None:
        if not self._over:
            self._over = True
            self._forget()

    def _check_open(self) -> None:
        if self._over:
            raise ValueError(f"the update to version {self.version} is over")

    def _named(self, name: str) -> Tensor:
        if name not in self._weights:
            raise ValueError(f"the engine has no weight called {name}")
        return self._weights[name]


async def bring(
    update: StagedUpdate,
    fetch: Callable[[], Mapping[str, Tensor]],
    patches: Sequence[Patch] = (),
    checksum: str | None = None,
) -> None:
    """Send weights, patch others and commit, or give the update up."""
    try:
        await update.send(fetch())
        if patches:
            await update.patch(patches)
        await update.commit(checksum)
    except BaseException:
        await update.give_up()
        raise


def mend(target: Tensor, patch: Patch) -> None:
    """Change some numbers of a weight, in place."""
    place_N = patch.index_N.to(target.device, torch.int64)
    target.view(-1)[place_N] = patch.value_N.to(target.device, target.dtype)


@torch.no_grad()
def write(update: StagedUpdate, weights: Mapping[str, Tensor], expected: str | None) -> None:
    """Take an update over. ValueError if the sum afterwards is not the one that is expected."""
    for name, tensor in update.tensors.items():
        weights[name].copy_(tensor)
    for patch in update.patches:
        mend(weights[patch.name], patch)
    if expected is not None and (found := checksum(weights)) != expected:
        raise ValueError(f"after the update to version {update.version} the weights' sum is {found}, not {expected}")

"""Applies packs to an engine.

A pack that does not fit leaves the engine as it was. Only a checksum that is wrong after the update is found too late:
then the engine refuses to sample until it gets full weights.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.core.lazy_weights import LazyWeights
from dojang.engine.weight_update import send_and_commit
from dojang.protocols import ServingEngine
from dojang.types import Metrics
from dojang.weight_sync.lora_merge import merged_weights
from dojang.weight_sync.pack import Buffer, Pack, decode

__all__ = ["LoraBase", "PackReceiver", "apply_pack"]

logger = logging.getLogger(__name__)

Fetch = Callable[[int | None, bool], Awaitable[Buffer]]
"""Returns the pack of a version for a receiver of a base version (None: full weights); True: with factors merged."""


class LoraBase:
    """Base weights of LoRA, held by a receiver: factors alone are sent afterwards."""

    def __init__(self, device: torch.device | None = None) -> None:
        """`device` merges them; None: the one that holds them."""
        self._device = device
        self._tensors: Mapping[str, Tensor] = {}
        self._checksum = ""

    def hold(self, tensors: Mapping[str, Tensor]) -> None:
        """Hold base weights that came by themselves. They must not change."""
        self._tensors, self._checksum = tensors, checksum(tensors, self._device)

    def fits(self, pack: Pack) -> bool:
        """Whether the pack's factors belong to the base weights that are held."""
        return self._checksum == pack.base_checksum

    def merge(self, pack: Pack) -> LazyWeights:
        """Return all weights with the pack's factors added, each merged when it is read. ValueError if they have
        another base, or do not become the weights that were published: all are merged once, one by one, to see that."""
        if pack.kind == "full":
            tensors, held = pack.tensors, ""
        else:
            tensors, held = self._tensors, self._checksum
            if not self.fits(pack):
                raise ValueError(
                    f"the factors of version {pack.version} belong to base weights with checksum {pack.base_checksum}; "
                    f"held are {held or 'none'}"
                )
        for name, (b, a) in pack.factors.items():
            if name not in tensors or tensors[name].shape != (b.shape[0], a.shape[1]):
                raise ValueError(f"the factors of version {pack.version} do not fit a weight called {name}")
        merged = merged_weights(tensors, pack.factors, device=self._device)
        if (found := checksum(merged, self._device)) != pack.checksum:
            raise ValueError(f"version {pack.version} has checksum {found} after merging, not {pack.checksum}")
        self._tensors, self._checksum = tensors, held or checksum(tensors, self._device)
        return merged


async def apply_pack(engine: ServingEngine, pack: Pack, lora_base: LoraBase | None = None) -> None:
    """Apply a pack to an engine. ValueError if it does not fit: fetch full weights then. Factors need a `lora_base`,
    which keeps the base weights of a full pack."""
    if pack.factors or pack.kind == "factors":
        merged = await asyncio.to_thread((lora_base or LoraBase()).merge, pack)
        await send_and_commit(await engine.begin(pack.version), merged, checksum=pack.checksum)
        return
    if pack.kind == "delta":
        await _check_base(engine, pack)
    update = await engine.begin(pack.version, base=pack.base)
    await send_and_commit(update, pack.tensors, pack.patches, pack.checksum)


async def _check_base(engine: ServingEngine, pack: Pack) -> None:
    try:
        held = await engine.checksum()
    except RuntimeError as error:  # vLLM before its first update
        raise ValueError(f"the engine's weights are not known: {error}") from error
    if held != pack.base_checksum:
        raise ValueError(
            f"the delta to version {pack.version} starts from weights with checksum {pack.base_checksum}; the engine "
            f"holds {held}"
        )


class PackReceiver:
    """Loads versions into one engine from packs, with full weights whenever a smaller pack does not fit."""

    def __init__(self, engine: ServingEngine, device: torch.device | None = None) -> None:
        """`device` merges LoRA factors; None: a CPU."""
        self._engine, self._lora_base = engine, LoraBase(device)
        self.version: int | None = None
        """Version that the engine holds; None: unknown, also after a failed update."""
        self._merge = False
        """Whether factors are merged by the sender, because they gave other weights here."""

    @property
    def first_request(self) -> tuple[int | None, bool]:
        """Arguments with which `load` calls `fetch` first: a caller may fetch that pack before."""
        return self.version, self._merge

    async def load(self, version: int, fetch: Fetch) -> Metrics:
        """Fetch a version and apply it. Returns metrics of the transfer. Raises the error of full weights."""
        size = 0
        for base, merge in dict.fromkeys([self.first_request, (None, self._merge), (None, True)]):
            data = await fetch(base, merge)
            size += len(data)
            try:
                pack = await asyncio.to_thread(decode, data)
                if pack.version != version:
                    raise ValueError(f"version {pack.version} came instead of {version}")
                self.version = None  # until the update has succeeded
                await apply_pack(self._engine, pack, self._lora_base)
            except (ValueError, RuntimeError) as error:
                if (base, merge) == (None, True):
                    raise
                logger.warning("fetching the full weights of version %d: %s", version, error)
            else:
                self.version, self._merge = version, merge
                return {"weights/bytes": float(size), "weights/whole": float(pack.kind == "full")}
        raise AssertionError("the last attempt raises")

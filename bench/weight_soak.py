"""A soak test of weight packs: every damaged pack must be refused, and the engine keep its weights.

Half of the packs are damaged on the way: bits flipped, bytes removed, inserted, swapped, repeated or zeroed, ends cut
off or added. The others are wrong although their digest fits, as a sender with a bug would make them: other values,
indices, bases or checksums. Wrong values are found by the checksum after the update: the engine then refuses to sample
until it gets full weights. Exit status 1 if a wrong pack was accepted.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.engine.weight_update import StagedUpdate, apply_update
from dojang.protocols import Patch, ServingEngine
from dojang.weight_sync.pack import Pack, decode, encode
from dojang.weight_sync.pack_receiver import apply_pack
from dojang.weight_sync.versions import WeightVersions
from machine import arguments, machine

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class DictEngine:
    """Weights in a dict, updated as an engine's."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights, self.version, self.dirty = weights, 0, False

    async def begin(self, version: int, *, base: int | None = None) -> StagedUpdate:
        if base is not None and (self.dirty or base != self.version):
            raise ValueError(f"it holds version {self.version}; send full weights")

        async def apply(update: StagedUpdate, expected: str | None) -> None:
            self.dirty = True
            apply_update(update, self.weights, expected)
            self.version, self.dirty = version, False

        return StagedUpdate(version, base, self.weights, apply, lambda: None)

    async def checksum(self) -> str:
        return checksum(self.weights)


# Damage on the way ----------------------------------------------------------------------------------------------------

Edit = Callable[[bytearray, int, int, random.Random], None]
"""Changes data between two positions."""


def _flip(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def _truncate(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    del data[start:]


def _extend(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    data += draw.randbytes(end - start)


def _remove(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    del data[start:end]


def _insert(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    data[start:start] = draw.randbytes(end - start)


def _swap(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    other = draw.randrange(len(data))
    size = min(end - start, len(data) - other)
    first, second = data[start : start + size], data[other : other + size]
    data[start : start + size], data[other : other + size] = second, first


def _zero(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    data[start:end] = bytes(end - start)


def _repeat(data: bytearray, start: int, end: int, draw: random.Random) -> None:
    data[start:start] = data[start:end]


DAMAGES: dict[str, Edit] = {
    "flip": _flip,
    "truncate": _truncate,
    "extend": _extend,
    "remove": _remove,
    "insert": _insert,
    "swap": _swap,
    "zero": _zero,
    "repeat": _repeat,
}


def damage(data: bytes, kind: str, draw: random.Random) -> bytes:
    """Damage data in one way; the result always differs from them."""
    while True:
        damaged = bytearray(data)
        start = draw.randrange(len(data))
        DAMAGES[kind](damaged, start, min(len(data), start + draw.choice((1, 2, 8, 64, 4096))), draw)
        if damaged != data:
            return bytes(damaged)


# Mistakes of a sender -------------------------------------------------------------------------------------------------


def mistake(pack: Pack, kind: str, draw: random.Random) -> Pack:
    """Return another pack than the right one."""
    patch = draw.choice(pack.patches)
    others = [each for each in pack.patches if each is not patch]
    at = draw.randrange(len(patch.index_N))
    if kind == "value":
        value_N = patch.value_N.clone()
        bits(value_N)[at] ^= 1 << draw.randrange(bits(value_N).itemsize * 8 - 1)
        return replace(pack, patches=[*others, replace(patch, value_N=value_N)])
    if kind == "index":
        taken = set(patch.index_N.tolist())
        index_N = patch.index_N.clone()
        index_N[at] = next(place for place in iter(lambda: draw.randrange(10_000), -1) if place not in taken)
        return replace(pack, patches=[*others, replace(patch, index_N=index_N)])
    if kind == "left out":
        return replace(pack, patches=others)
    if kind == "renamed":
        other = draw.choice([each.name for each in others])
        return replace(pack, patches=[*others, Patch(other, patch.index_N, patch.value_N)])
    if kind == "base":
        return replace(pack, base=draw.randrange(2, 100))
    wrong = f"{draw.getrandbits(64):016x}"
    return replace(pack, base_checksum=wrong) if kind == "base checksum" else replace(pack, checksum=wrong)


MISTAKES = ("value", "index", "left out", "renamed", "base", "base checksum", "checksum")


# The soak -------------------------------------------------------------------------------------------------------------


def versions(dtype: torch.dtype, seed: int) -> WeightVersions:
    """Two versions of small weights."""
    draw = torch.Generator().manual_seed(seed)
    store = WeightVersions(dtype, 2, deltas=1)
    weights = {name: torch.randn(100, 100, generator=draw) for name in ("up", "down", "head")}
    store.publish(0, weights)
    for each in weights.values():
        each[torch.rand(each.shape, generator=draw) < 0.01] += 0.5
    store.publish(1, weights)
    return store


async def soak(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Try wrong packs; returns how many of each kind were refused, and those accepted."""
    draw, refused, accepted = random.Random(seed), Counter[str](), list[str]()
    for number in range(count):
        if number % 1000 == 0:
            store = versions(DTYPES[number // 1000 % 3], seed + number)
            pack, first = store.pack(1, 0), store.fetch(0)
            data = encode(pack)
            engine = DictEngine({name: each.clone() for name, each in first.items()})
        if number % 2:
            kind = draw.choice(list(DAMAGES))
            sent = damage(data, kind, draw)
        else:
            kind = draw.choice(MISTAKES)
            sent = encode(mistake(pack, kind, draw))
        try:
            await apply_pack(cast(ServingEngine, engine), decode(sent))
        except ValueError:
            refused[kind] += 1
        else:
            accepted.append(f"pack {number}, {kind}")
        if engine.dirty:  # full weights
            engine = DictEngine({name: each.clone() for name, each in first.items()})
        elif checksum(engine.weights) != pack.base_checksum:
            accepted.append(f"pack {number}, {kind}: the engine's weights changed")
    return refused, accepted


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--packs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started = time.monotonic()
    refused, accepted = asyncio.run(soak(asked.packs, asked.seed))
    seconds = time.monotonic() - started
    if asked.json:
        found = {"refused": dict(refused), "accepted": accepted, "seconds": seconds}
        print(json.dumps({"bench": "weight_soak", "machine": machine(), **found}))
    else:
        print(f"{asked.packs:,} wrong packs in {seconds:.0f} s, {len(accepted)} accepted; refused: {dict(refused)}")
    for each in accepted[:20]:
        print(f"accepted: {each}", file=sys.stderr)
    sys.exit(bool(accepted))


if __name__ == "__main__":
    main()

"""Keys and values of the torch engine, by the arithmetic of engine/kv_cache.py."""

from dataclasses import dataclass, replace

from dojang.planning.shapes import Shape

__all__ = ["GIB", "Cache", "key_value_cache"]

GIB = 1 << 30
_GRAIN = 64


@dataclass(frozen=True, slots=True)
class Cache:
    """Slots for sequences."""

    slots: int
    """How many can be decoded at a time; 0 if not even one fits."""
    length: int
    """Tokens of each."""
    bytes: int
    needed: int
    """Bytes of a single sequence as long as it may get."""

    def part(self, parts: int) -> "Cache":
        """The share of one GPU, of so many that divide the heads."""
        return replace(self, bytes=self.bytes // parts, needed=self.needed // parts)


def key_value_cache(shape: Shape, itemsize: int, slots: int, budget: int, longest: int, *, all_at_once: bool) -> Cache:
    """What is taken of the budget for sequences of so many tokens. On a GPU all of it is taken at once, for longer
    slots, and one slot more."""
    token = shape.kv_numbers * itemsize
    length = -(-min(longest, shape.context) // _GRAIN) * _GRAIN
    fitting = min(slots, budget // (length * token) - all_at_once)
    if fitting <= 0:
        return Cache(0, length, 0, length * token)
    if all_at_once:
        length = max(length, min(shape.context, budget // ((fitting + 1) * token)))
    return Cache(fitting, length, (fitting + all_at_once) * length * token, length * token)

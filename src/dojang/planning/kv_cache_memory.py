"""KV cache of the torch engine within a budget."""

from dataclasses import dataclass, replace

from dojang.engine.kv_cache_size import fitting_slots, largest_slot_length, slot_length
from dojang.planning.shapes import Shape

__all__ = ["GIB", "Cache", "key_value_cache"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Cache:
    """KV cache slots for sequences."""

    slots: int
    """Number of sequences decoded at a time; 0 if not one fits."""
    length: int
    """Tokens of each slot."""
    bytes: int
    needed: int
    """Bytes of one sequence of maximum length."""

    def part(self, parts: int) -> "Cache":
        """Share of one GPU if `parts` tensor parallel GPUs divide the heads."""
        return replace(self, bytes=self.bytes // parts, needed=self.needed // parts)


def key_value_cache(shape: Shape, itemsize: int, slots: int, budget: int, longest: int, *, all_at_once: bool) -> Cache:
    """KV cache within a budget in bytes, for sequences of up to `longest` tokens. On a GPU (`all_at_once`) the whole
    budget is allocated at once: longer slots, and one more."""
    token, length = shape.kv_numbers * itemsize, slot_length(min(longest, shape.context))
    fitting = fitting_slots(length, token, budget, slots, indirect=all_at_once)
    if fitting <= 0:
        return Cache(0, length, 0, length * token)
    if all_at_once:
        length = largest_slot_length(length, fitting, token, budget, shape.context)
    return Cache(fitting, length, (fitting + all_at_once) * length * token, length * token)

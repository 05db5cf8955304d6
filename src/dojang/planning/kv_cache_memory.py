"""KV cache of the torch engine within a budget."""

from dataclasses import dataclass, replace

from dojang.engine.kv_cache_size import PAGE_TOKENS, num_pages, pages_for
from dojang.planning.shapes import Shape

__all__ = ["GIB", "Cache", "key_value_cache"]

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Cache:
    """KV cache of sequences."""

    slots: int
    """Number of sequences decoded at a time; 0 if not one of maximum length fits."""
    length: int
    """Tokens of each of them, on average."""
    bytes: int
    needed: int
    """Bytes of one sequence of maximum length."""

    def part(self, parts: int) -> "Cache":
        """Share of one GPU if `parts` tensor parallel GPUs divide the heads."""
        return replace(self, bytes=self.bytes // parts, needed=self.needed // parts)


def key_value_cache(
    shape: Shape, itemsize: int, sequences: int, budget: int, *, longest: int, mean: int, all_at_once: bool
) -> Cache:
    """KV cache within a budget in bytes, for at most `sequences` of up to `longest` tokens. They take pages as
    they grow, so `mean` decides how many run at a time. On a GPU (`all_at_once`) the budget is allocated at once, but
    no more than sequences of the whole context need."""
    token, longest = shape.kv_numbers * itemsize, min(longest, shape.context)
    page, needed = PAGE_TOKENS * token, pages_for(longest)
    pages = num_pages(budget, token, sequences, shape.context if all_at_once else longest)
    if pages <= needed:
        return Cache(0, mean, 0, needed * page)
    running = min(sequences, (pages - 1) // pages_for(min(mean, longest)))
    return Cache(running, mean, pages * page, needed * page)

"""Size of an engine's KV cache: its budget, and the pages in it. Imports no torch: `dojang plan` uses it too."""

__all__ = ["DEFAULT_BYTES", "PAGE_TOKENS", "UTILIZATION", "kv_budget", "longest_sequence", "num_pages", "pages_for"]

_GIB = 1 << 30
_MARGIN = 2 * _GIB
"""Least memory an engine needs beside weights and KV cache: activations of a prefill chunk, logits, CUDA graphs, and
one weight at a time while new ones are copied in (they come from main memory: the GPU holds no staged copy)."""
DEFAULT_BYTES = 4 * _GIB
"""KV cache on a CPU if rollout.engine.kv_cache_gb is not set."""
PAGE_TOKENS = 64
"""Tokens of a page: what decode attention reads at a time on a GPU. A sequence leaves half a page unused on average."""
UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM takes when it is alone on the GPU."""


def kv_budget(free: int, *, alone: bool, reserved: int | None = None) -> int:
    """Bytes for the KV cache out of `free` bytes, with the engine's weights already there. An engine alone on its GPU
    takes 85%, but leaves 2 GiB (half, on a very small GPU). One beside trainers takes half of what they will not
    allocate, which is `reserved`; if that is not known, a third."""
    if not alone:
        return free // 3 if reserved is None else max(1, (free - reserved) // 2)
    return max(free // 2, min(free * 85 // 100, free - _MARGIN))


def pages_for(tokens: int) -> int:
    """Pages of a sequence of `tokens` tokens."""
    return -(-tokens // PAGE_TOKENS)


def num_pages(budget: int, token_bytes: int, sequences: int, context: int) -> int:
    """Pages in a budget, and never more than `sequences` of the whole context need. One page is for padding."""
    return min(budget // (PAGE_TOKENS * token_bytes), 1 + sequences * pages_for(context))


def longest_sequence(budget: int, token_bytes: int) -> int:
    """Most tokens of a sequence in a KV cache of `budget` bytes, if it is the only one there."""
    return max(0, budget // (PAGE_TOKENS * token_bytes) - 1) * PAGE_TOKENS

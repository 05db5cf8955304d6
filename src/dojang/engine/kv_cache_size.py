"""Size of an engine's KV cache on a GPU, alone or shared. Imports no torch: `dojang plan` uses it too."""

__all__ = ["LENGTH_MULTIPLE", "UTILIZATION", "kv_budget", "longest_sequence"]

_GIB = 1 << 30
_MARGIN = 2 * _GIB
"""Least memory an engine needs beside weights and KV cache: activations of a prefill chunk, logits, CUDA graphs, and
one weight at a time while new ones are copied in (they come from main memory: the GPU holds no staged copy)."""
UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM takes when it is alone on the GPU."""


LENGTH_MULTIPLE = 64
"""Slot lengths are rounded up to a multiple of this."""


def longest_sequence(budget: int, token_bytes: int) -> int:
    """Most tokens of a sequence in a KV cache of `budget` bytes, if it is the only one there."""
    return budget // token_bytes // LENGTH_MULTIPLE * LENGTH_MULTIPLE


def kv_budget(free: int, *, alone: bool) -> int:
    """Bytes for the KV cache out of `free` bytes, with the engine's weights already there. An engine alone on its GPU
    takes 85%, but leaves 2 GiB (half, on a very small GPU); one that shares it with others takes a third."""
    if not alone:
        return free // 3
    return max(free // 2, min(free * 85 // 100, free - _MARGIN))

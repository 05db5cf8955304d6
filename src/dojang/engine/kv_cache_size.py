"""Size of an engine's KV cache on a GPU, alone or shared. Imports no torch: `dojang plan` uses it too."""

__all__ = ["UTILIZATION", "kv_budget"]

_GIB = 1 << 30
_MARGIN = 2 * _GIB
"""Least memory an engine needs beside weights and KV cache: activations of a prefill chunk, logits, CUDA graphs, and
one weight at a time while new ones are copied in (they come from main memory: the GPU holds no staged copy)."""
UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM takes when it is alone on the GPU."""


def kv_budget(free: int, *, alone: bool) -> int:
    """Bytes for the KV cache out of `free` bytes, with the engine's weights already there. An engine alone on its GPU
    takes 85%, but leaves 2 GiB (half, on a very small GPU); one that shares it with others takes a third."""
    if not alone:
        return free // 3
    return max(free // 2, min(free * 85 // 100, free - _MARGIN))

"""Size of an engine's KV cache on a GPU, by who shares the GPU. Loads no torch: `dojang plan` reckons with it too."""

__all__ = ["UTILIZATION", "kv_budget"]

_GIB = 1 << 30
_MARGIN = 2 * _GIB
"""Least memory an engine needs beside weights and KV cache: activations of a prefill chunk, logits, CUDA graphs, and
one weight at a time while new ones are copied in (they come from main memory: there is no staged copy on the GPU)."""
UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM takes where it has the GPU to itself."""


def kv_budget(free: int, *, alone: bool) -> int:
    """Bytes for the KV cache out of `free` bytes, with the engine's weights already there. An engine alone on its GPU
    takes 85%, but leaves 2 GiB (of a very small GPU, half); one that shares it with a trainer or others a third."""
    if not alone:
        return free // 3
    return max(free // 2, min(free * 85 // 100, free - _MARGIN))

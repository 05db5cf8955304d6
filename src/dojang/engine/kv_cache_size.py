"""Size of an engine's KV cache: its budget, and the slots that fit. Imports no torch: `dojang plan` uses it too."""

__all__ = [
    "DEFAULT_BYTES",
    "UTILIZATION",
    "fitting_slots",
    "kv_budget",
    "largest_slot_length",
    "longest_sequence",
    "slot_length",
]

_GIB = 1 << 30
_MARGIN = 2 * _GIB
"""Least memory an engine needs beside weights and KV cache: activations of a prefill chunk, logits, CUDA graphs, and
one weight at a time while new ones are copied in (they come from main memory: the GPU holds no staged copy)."""
DEFAULT_BYTES = 4 * _GIB
"""KV cache on a CPU if rollout.engine.kv_cache_gb is not set."""
_LENGTH_MULTIPLE = 64
"""Slot lengths are rounded up to a multiple of this."""
UTILIZATION = 0.9
"""Share of a GPU's memory that vLLM takes when it is alone on the GPU."""


def longest_sequence(budget: int, token_bytes: int) -> int:
    """Most tokens of a sequence in a KV cache of `budget` bytes, if it is the only one there."""
    return budget // token_bytes // _LENGTH_MULTIPLE * _LENGTH_MULTIPLE


def kv_budget(free: int, *, alone: bool, reserved: int | None = None) -> int:
    """Bytes for the KV cache out of `free` bytes, with the engine's weights already there. An engine alone on its GPU
    takes 85%, but leaves 2 GiB (half, on a very small GPU). One beside trainers takes half of what they will not
    allocate, which is `reserved`; if that is not known, a third."""
    if not alone:
        return free // 3 if reserved is None else max(1, (free - reserved) // 2)
    return max(free // 2, min(free * 85 // 100, free - _MARGIN))


def slot_length(tokens: int) -> int:
    """Length of a slot for sequences of `tokens` tokens."""
    return -(-tokens // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE


def fitting_slots(length: int, token_bytes: int, budget: int, max_slots: int, *, indirect: bool) -> int:
    """Number of slots of `length` tokens in a budget; 0 or less if none fits. With a slot table (`indirect`, on a GPU)
    one more slot is allocated, which padding rows write into."""
    return min(max_slots, budget // (length * token_bytes) - indirect)


def largest_slot_length(length: int, slots: int, token_bytes: int, budget: int, context: int) -> int:
    """Length of each slot if the whole budget is allocated at once, for sequences of up to `context` tokens."""
    return max(length, min(context, budget // ((slots + 1) * token_bytes)))

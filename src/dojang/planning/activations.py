"""Bytes that a token leaves behind in a forward pass, for its gradient: what autograd keeps."""

from dojang.planning.shapes import Shape

__all__ = ["activation_bytes", "layer_bytes", "score_bytes"]

_SCORES, _SCORES_GPU = 1 << 23, 1 << 26
"""Of trainer/logprobs.py: made at a time."""
_PLACES = 64
"""Numbers for each token of a row: places, masks, log-probs."""


def layer_bytes(shape: Shape, precision: str, *, narrow: bool, adapted: bool) -> int:
    """Of one layer. `narrow`: what goes from layer to layer is in half precision as well, as where the weights are."""
    e, a, k, f = shape.hidden, shape.queries, shape.keys, shape.mlp
    if precision != "half":
        # Inputs of both norms, what they make, queries, keys, values, what they see (twice: padded, and taken out of
        # that), and the two halves of the gated layer.
        numbers = 4 * e + 3 * a + 2 * k + 2 * f + shape.heads
        return (8 if precision == "double" else 4) * numbers
    # Each projection keeps an input of its own, since it is rounded for each: three for q, k and v, two for the gate.
    inputs = 5 if not narrow or adapted else 2
    kept = 2 * (inputs * e + 2 * a + 2 * k + 2 * f) + 4 * shape.heads
    through = 2 * (2 if narrow else 4) * e
    # peft's projections keep what they are given; the gated layer is transformers' own, and keeps what is between.
    more = 2 * (a + 3 * f) if adapted else 0
    return kept + through + more


def activation_bytes(shape: Shape, precision: str, *, narrow: bool, adapted: bool, gradient_checkpointing: bool) -> int:
    """Of all layers; with `gradient_checkpointing`, the inputs of all and the rest of one."""
    layer = layer_bytes(shape, precision, narrow=narrow, adapted=adapted)
    wide = {"half": 2 if narrow else 4, "single": 4, "double": 8}[precision]
    ends = 3 * wide * shape.hidden + _PLACES
    if gradient_checkpointing:
        return shape.layers * wide * shape.hidden + layer + ends
    return shape.layers * layer + ends


def score_bytes(shape: Shape, tokens: int, itemsize: int, *, gpu: bool, head_learns: bool) -> int:
    """While log-probs are made, or their gradients: some chunks of scores in single precision, and the head's
    gradient."""
    chunk = max(4, itemsize) * min(_SCORES_GPU if gpu else _SCORES, tokens * shape.vocabulary)
    head = shape.vocabulary * shape.hidden
    gradient = (max(4, itemsize) + itemsize) * head if head_learns else 0
    return max(3 * chunk, 2 * chunk + gradient)

"""Bytes of activations per token that autograd saves for the backward pass."""

from dojang.planning.shapes import Shape

__all__ = ["activation_bytes", "layer_bytes", "score_bytes"]

_SCORES, _SCORES_GPU = 1 << 23, 1 << 26
"""Logits computed at a time, as in trainer/logprobs.py."""
_PLACES = 64
"""Bytes per token for positions, masks and log-probs."""


def layer_bytes(shape: Shape, precision: str, *, narrow: bool, adapted: bool) -> int:
    """Bytes of one layer. `narrow`: the residual stream is half precision too, as with half-precision weights."""
    e, a, k, f = shape.hidden, shape.queries, shape.keys, shape.mlp
    if precision != "half":
        # Inputs and outputs of both norms, queries, keys, values, the attention output (twice: padded and unpadded),
        # and the two halves of the gated MLP.
        numbers = 4 * e + 3 * a + 2 * k + 2 * f + shape.heads
        return (8 if precision == "double" else 4) * numbers
    # Each projection saves its own rounded input: three for q, k and v, two for gate and up.
    inputs = 5 if not narrow or adapted else 2
    kept = 2 * (inputs * e + 2 * a + 2 * k + 2 * f) + 4 * shape.heads
    through = 2 * (2 if narrow else 4) * e
    # peft's projections save their inputs; transformers' gated MLP saves its intermediate results.
    more = 2 * (a + 3 * f) if adapted else 0
    return kept + through + more


def activation_bytes(shape: Shape, precision: str, *, narrow: bool, adapted: bool, gradient_checkpointing: bool) -> int:
    """Bytes of all layers; with `gradient_checkpointing`, the inputs of all and the rest of one."""
    layer = layer_bytes(shape, precision, narrow=narrow, adapted=adapted)
    wide = {"half": 2 if narrow else 4, "single": 4, "double": 8}[precision]
    ends = 3 * wide * shape.hidden + _PLACES
    if gradient_checkpointing:
        return shape.layers * wide * shape.hidden + layer + ends
    return shape.layers * layer + ends


def score_bytes(shape: Shape, tokens: int, itemsize: int, *, gpu: bool, head_learns: bool) -> int:
    """Bytes while log-probs or their gradients are computed: chunks of float32 logits, and the head's gradient."""
    chunk = max(4, itemsize) * min(_SCORES_GPU if gpu else _SCORES, tokens * shape.vocabulary)
    head = shape.vocabulary * shape.hidden
    gradient = (max(4, itemsize) + itemsize) * head if head_learns else 0
    return max(3 * chunk, 2 * chunk + gradient)

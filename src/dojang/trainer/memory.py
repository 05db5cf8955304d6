"""Bytes that training keeps: optimizer state, activations, logits. Imports no torch: `dojang plan` uses it too.

The trainer takes its chunk sizes and quantization from here. Tests hold the formulas to the tensors that autograd and
the optimizers keep.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from dojang.core.errors import ConfigError

__all__ = [
    "AUTO",
    "NF4",
    "NF4_BYTES",
    "LayerSizes",
    "activation_bytes",
    "check_checkpointed_layers",
    "checkpointed_layers",
    "layer_bytes",
    "logits_bytes",
    "logits_per_chunk",
    "optimizer_bytes",
]

AUTO = "auto"
"""train.gradient_checkpointing whose number of layers is chosen when a run starts."""
NF4: Mapping[str, Any] = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
"""Quantization of 4-bit weights by bitsandbytes."""
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in it: a scale of one byte for 64 weights, and one of four bytes for 256 scales."""
_POSITIONS = 64
"""Bytes per token for positions, masks and log-probs."""


class LayerSizes(Protocol):
    """Sizes of a model that its activations depend on, in numbers per token; means over the layers."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def queries(self) -> int: ...
    @property
    def keys(self) -> int: ...
    @property
    def token_mlp(self) -> int: ...
    @property
    def routed(self) -> int:
        """Inputs of all experts that a token uses."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def fused_norms(self) -> bool:
        """Whether `fuse_layers` replaces the norms."""

    @property
    def fused_mlp(self) -> bool:
        """Whether it replaces the MLP."""

    @property
    def qk_norm(self) -> bool: ...
    @property
    def attention_softcap(self) -> bool: ...


def optimizer_bytes(optimizer: str, itemsize: int, matrices: int, others: int) -> float:
    """Bytes of the optimizer state of weights with `itemsize` bytes: `matrices` in the matrices of the layers, and
    `others`. adamw8bit has a scale of four bytes for 256 values; muon one average of a matrix."""
    if optimizer == "adamw8bit":
        return 2 * (1 + 4 / 256) * (matrices + others)
    averages = 1 if optimizer == "muon" else 2
    return itemsize * (averages * matrices + 2 * others)


def layer_bytes(
    shape: LayerSizes, precision: str, *, narrow: bool, adapted: bool, quantized: bool = False, longest: int = 0
) -> int:
    """Bytes per token that autograd saves of one layer. `narrow`: the residual stream is half precision too, as with
    half-precision weights. `adapted`: with LoRA, over 4-bit weights if `quantized`. `longest`: tokens of the longest
    sequence, which only soft-capped attention depends on."""
    e, a, k, f = shape.hidden, shape.queries, shape.keys, shape.token_mlp
    size = {"half": 2, "single": 4, "double": 8}[precision]
    special = _special_bytes(shape, size, 2 if narrow else max(4, size), adapted=adapted)
    if shape.attention_softcap:
        special += max(8, 2 * size) * shape.heads * longest  # tanh and softmax of all scores
    if precision != "half":
        # Inputs and outputs of both norms, queries, keys, values, the attention output (twice: padded and unpadded),
        # and the two halves of the gated MLP.
        return special + size * (4 * e + 3 * a + 2 * k + 2 * f + shape.heads)
    # Each projection saves its own rounded input: three for q, k and v, two for gate and up.
    # peft's adapters convert theirs to float32, which autocast rounds again; not over 4-bit weights.
    inputs = 5 if not narrow or (adapted and not quantized) else 2
    kept = 2 * (inputs * e + 2 * a + 2 * k + 2 * f) + 4 * shape.heads
    through = 2 * (2 if narrow else 4) * e
    # peft's projections save their inputs; transformers' gated MLP saves its intermediate results.
    more = 2 * (2 * f if quantized else a + 2 * f) if adapted else 0
    return kept + through + more + special


def _special_bytes(shape: LayerSizes, size: int, wide: int, *, adapted: bool) -> int:
    """Bytes per token by which a layer differs from Llama's; `size` and `wide` are the bytes of a number in a
    projection and in the residual stream."""
    heads = shape.queries + shape.keys
    found = 0
    if shape.qk_norm:
        found += size * heads if shape.fused_norms else 2 * wide * heads
    if not shape.fused_norms:
        found += 6 * wide * shape.hidden  # each norm saves its input and result in single precision
    if shape.routed:  # experts are not computed by autocast
        found += wide * (2 * shape.routed + 3 * shape.token_mlp)
    elif not (shape.fused_mlp or adapted):
        found += 2 * size * shape.token_mlp
    return found


def activation_bytes(
    shape: LayerSizes,
    precision: str,
    *,
    narrow: bool,
    adapted: bool,
    gradient_checkpointing: bool | int | str,
    quantized: bool = False,
    longest: int = 0,
) -> int:
    """Bytes per token of all layers. Of layers with gradient checkpointing only the inputs, and the rest of one while
    it is recomputed: by then the backward pass has freed the layers without."""
    layer = layer_bytes(shape, precision, narrow=narrow, adapted=adapted, quantized=quantized, longest=longest)
    wide = {"half": 2 if narrow else 4, "single": 4, "double": 8}[precision]
    ends = 3 * wide * shape.hidden + _POSITIONS
    count = checkpointed_layers(gradient_checkpointing, shape.layers)
    return count * wide * shape.hidden + max(1, shape.layers - count) * layer + ends


def checkpointed_layers(setting: bool | int | str, layers: int) -> int:
    """Number of the first layers that `train.gradient_checkpointing` recomputes, out of `layers`."""
    if isinstance(setting, str):
        raise ConfigError(
            f"train.gradient_checkpointing={setting} becomes a number of layers when a run starts; a trainer by itself "
            "needs true, false or a number"
        )
    return layers * setting if isinstance(setting, bool) else min(setting, layers)


def check_checkpointed_layers(setting: bool | int | str, layers: int) -> None:
    """Raises ConfigError if train.gradient_checkpointing asks for more layers than there are."""
    if not isinstance(setting, bool | str) and setting > layers:
        raise ConfigError(
            f"train.gradient_checkpointing={setting} is a number of layers, but the model has {layers}; set it to "
            f"{layers} or less, or to true for all"
        )


def logits_per_chunk(*, gpu: bool) -> int:
    """Number of logits computed at a time: 32 MiB, or 256 MiB on a GPU, which smaller products would not fill."""
    return 1 << 26 if gpu else 1 << 23


def logits_bytes(shape: LayerSizes, tokens: int, itemsize: int, *, gpu: bool, trains_head: bool) -> int:
    """Bytes while log-probs or their gradients are computed: chunks of float32 logits, and the head's gradient."""
    chunk = max(4, itemsize) * min(logits_per_chunk(gpu=gpu), tokens * shape.vocabulary)
    head = shape.vocabulary * shape.hidden
    gradient = (max(4, itemsize) + itemsize) * head if trains_head else 0
    return max(3 * chunk, 2 * chunk + gradient)

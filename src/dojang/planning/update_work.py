"""Work of forward and backward passes on a GPU: matrix products, attention, and bytes that other kernels move.

Bytes are counted kernel by kernel, in the order of the trainer's code (trainer/fused_layers.py, trainer/logprobs.py,
trainer/flash_attention.py, transformers' layers, peft's adapters) in bfloat16 autocast; none of them is fitted. Each
number below is what a kernel reads and writes for one number of a token, in bytes: 2 for bfloat16, 4 for float32.
"""

from dataclasses import dataclass
from enum import Enum

from dojang.planning.shapes import Shape
from dojang.trainer.memory import logits_per_chunk

__all__ = ["GpuWork", "Layers", "Tokens", "backward", "forward"]


class Layers(Enum):
    """Weights of the layers, which decide what is rounded and copied."""

    TRAINED = "float32 weights, all trained"
    FROZEN = "half-precision weights, none trained"
    ADAPTED = "half-precision weights under LoRA"
    QUANTIZED = "4-bit weights under LoRA"

    @property
    def lora(self) -> bool:
        return self in (Layers.ADAPTED, Layers.QUANTIZED)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of all micro-batches that a pass computes."""

    read: float
    answered: float
    """Those with logits."""
    contexts: float
    """Sum of their context lengths."""
    batches: int
    """Number of micro-batches."""


@dataclass(frozen=True, slots=True)
class GpuWork:
    """Work of a pass over all micro-batches."""

    products: float
    """FLOPs of matrix products."""
    attention: float
    """FLOPs of attention."""
    moved: float
    """Bytes."""

    def __add__(self, other: "GpuWork") -> "GpuWork":
        return GpuWork(self.products + other.products, self.attention + other.attention, self.moved + other.moved)

    def __mul__(self, share: float) -> "GpuWork":
        return GpuWork(self.products * share, self.attention * share, self.moved * share)


def forward(shape: Shape, layers: Layers, tokens: Tokens) -> GpuWork:
    """Forward pass, with log-probs and entropies."""
    head, active = shape.vocabulary * shape.hidden, shape.projected - shape.unused()
    weights = {Layers.TRAINED: 6 * shape.parameters, Layers.QUANTIZED: _DEQUANTIZED * shape.linear}.get(layers, 0)
    # Per chunk the head is read once.
    logits = _LOGITS_FORWARD * tokens.answered * shape.vocabulary + 2 * head * _chunks(shape, tokens)
    layer = _elementwise_forward(shape, layers) + 2 * _ends(shape) * (2 if layers.lora else 1)
    return GpuWork(
        products=2 * tokens.read * active + 2 * tokens.answered * head,
        attention=4 * shape.layers * shape.queries * tokens.contexts,
        moved=tokens.read * shape.layers * layer + logits + tokens.batches * weights,
    )


def backward(shape: Shape, layers: Layers, tokens: Tokens) -> GpuWork:
    """Backward pass, without recomputed layers; logits are computed again."""
    head, active = shape.vocabulary * shape.hidden, shape.projected - shape.unused()
    trained = layers is Layers.TRAINED
    # Half-precision gradients of weights are written, converted, and added to the float32 ones.
    weights = {Layers.TRAINED: 20 * shape.parameters, Layers.QUANTIZED: _DEQUANTIZED * shape.linear}.get(layers, 0)
    # Per chunk the head is read twice; its gradient is written in half precision and added in float32.
    logits = _LOGITS_BACKWARD * tokens.answered * shape.vocabulary
    logits += (14 if trained else 4) * head * _chunks(shape, tokens)
    layer = _elementwise_backward(shape, layers) + (2 * 2 if trained else 2 + 4) * _ends(shape)
    return GpuWork(
        products=(4 if trained else 2) * tokens.read * active + (6 if trained else 4) * tokens.answered * head,
        attention=10 * shape.layers * shape.queries * tokens.contexts,
        moved=tokens.read * shape.layers * layer + logits + tokens.batches * weights,
    )


_DEQUANTIZED = 4.5
"""Bytes per 4-bit weight and pass: half a byte read, bfloat16 written and read."""
_LOGITS_FORWARD = 8 + 24 + 16 + 8
"""Bytes per logit: product and conversion to float32; logsumexp in four kernels; probabilities; entropy."""
_LOGITS_BACKWARD = 8 + 8 + 8 + 8 + 6 + 4
"""Product and conversion; log-probs; probabilities; factors; rounding; read by the products with head and inputs."""


def _chunks(shape: Shape, tokens: Tokens) -> float:
    """Number of chunks of logits."""
    return tokens.answered * shape.vocabulary / logits_per_chunk(gpu=True)


def _inputs(shape: Shape) -> int:
    """Inputs of all projections of a layer: of q, k, v, gate and up; of the attention output and of down."""
    return 5 * shape.hidden + shape.queries + shape.token_mlp


def _outputs(shape: Shape) -> int:
    return shape.queries + 2 * shape.keys + 2 * shape.hidden + 2 * shape.token_mlp


def _ends(shape: Shape) -> int:
    return _inputs(shape) + _outputs(shape)


def _elementwise_forward(shape: Shape, layers: Layers) -> int:
    """Bytes per token and layer."""
    e, turned, f = shape.hidden, shape.queries + shape.keys, shape.token_mlp
    mlp = 10 * f  # silu, product
    if layers is Layers.TRAINED:
        # Norms in float32; each of q, k, v, gate and up rounds its own input; residual sums in float32; rotary
        # embeddings in float32 (halves turned, two products, their sum, rounding).
        return 2 * 8 * e + 5 * 6 * e + 2 * 10 * e + 34 * turned + mlp
    plain = 2 * 4 * e + 2 * 6 * e + 18 * turned + mlp
    if layers is Layers.ADAPTED:  # inputs to float32 and back; outputs scaled and added
        return plain + 12 * _inputs(shape) + 10 * _outputs(shape)
    if layers is Layers.QUANTIZED:  # bitsandbytes' outputs are copied too
        return plain + 14 * _outputs(shape)
    return plain


def _elementwise_backward(shape: Shape, layers: Layers) -> int:
    e, turned, f = shape.hidden, shape.queries + shape.keys, shape.token_mlp
    if layers is Layers.TRAINED:
        # Norms; conversions of the gradients of five inputs, and three sums of them; residual sums; rounded gradients
        # of both outputs; rotary embeddings; silu recomputed, products, its derivative.
        return 2 * 12 * e + 5 * 6 * e + 3 * 12 * e + 2 * 12 * e + 2 * 6 * e + 54 * turned + 26 * f
    plain = 2 * 6 * e + 3 * 6 * e + 2 * 6 * e + 30 * turned + 18 * f + 4 * _outputs(shape)
    # The gradient of an input is the sum of that of the weight and that of its adapter.
    return plain + (18 if layers is Layers.ADAPTED else 6) * _inputs(shape)

"""The decoder of Llama, Qwen2, Qwen3 and their like, for generation alone: fused weights, no padding, no gradients.

Tokens of all sequences lie in one row, N of them, so that every linear layer is one product. Only attention knows
which token belongs to whom, and it is the caller's: `attend(layer, q, k, v)` stores keys and values and returns what
the queries see. The arithmetic follows transformers' step by step, so that both give the same numbers up to rounding.

Shapes: N tokens, H query heads, K heads of keys and values, D numbers a head, E numbers a token, V words.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from dojang.core.errors import ModelError
from dojang.core.output_head import float32_logits
from dojang.engine.cpu_ops import between_for
from dojang.engine.elementwise import Arithmetic, NativeArithmetic, PlainArithmetic
from dojang.engine.linear import Linear

__all__ = ["Attend", "Decoder", "Shape"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
_FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers a model is made of."""

    layers: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    context: int
    epsilon: float

    @classmethod
    def of(cls, config: Any) -> "Shape":
        if config.model_type not in _FAMILIES or getattr(config, "use_sliding_window", False):
            raise ModelError(
                f"the torch engine reads models of the families {', '.join(_FAMILIES)} without sliding windows, and "
                f"this is a {config.model_type}"
            )
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            context=config.max_position_embeddings,
            epsilon=config.rms_norm_eps,
        )


@dataclass(frozen=True, slots=True)
class _Layer:
    before_attention: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Linear
    before_mlp: Tensor
    gate_up: Linear
    down: Linear


class Decoder:
    """A model's weights as generation wants them."""

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype | None = None, *, float32_head: bool = False) -> None:
        """Copies of a model's weights, in its own precision or another. With `float32_head`, logits are not rounded to
        half precision."""
        self.shape = Shape.of(model.config)
        self.dtype, self.device = dtype or model.dtype, model.device
        named = dict(model.named_parameters())

        def copied(*names: str) -> Tensor:
            return torch.cat([named[name].detach().to(self.dtype) for name in names])

        self._embedding = copied("model.embed_tokens.weight")
        self._norm = copied("model.norm.weight")
        self._tied = "lm_head.weight" not in named
        self._head = Linear(self._embedding if self._tied else copied("lm_head.weight"), [self.shape.vocabulary])
        self._layers = [_layer(named, f"model.layers.{index}.", copied) for index in range(self.shape.layers)]
        self._arithmetic = _arithmetic(model, self.shape, self.dtype, fused=self.fused)
        self._wide = float32_head and self.dtype in (torch.bfloat16, torch.float16)
        self._wide_head: Tensor | None = None
        """The head in float32, where there is no product of half-precision numbers with a float32 result."""
        self.grain = _grain(self.dtype, self.device)
        """Products have a multiple of so many rows."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """Where each weight of a checkpoint lives here. Whoever writes into one calls `refresh` afterwards."""
        found = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if not self._tied:
            found["lm_head.weight"] = self._head.weight
        for index, layer in enumerate(self._layers):
            found |= _layer_weights(layer, f"model.layers.{index}.")
        return found

    @property
    def fused(self) -> bool:
        """Whether it runs on kernels made for a GPU, of which there are none in double precision."""
        return self.device.type == "cuda" and self.dtype is not torch.float64

    def refresh(self) -> None:
        """Weights have changed."""
        self._wide_head = None
        for linear in (self._head, *(each for layer in self._layers for each in _linears(layer))):
            linear.refresh()

    def forward(self, token_N: Tensor, position_N: Tensor, attend: Attend, wanted: Tensor | None = None) -> Tensor:
        """What the last layer makes of each token, [N, E]; or only of those whose places are given."""
        do, count = self._arithmetic, len(token_N)
        do.at(self._even(position_N))
        x_NE = functional.embedding(self._even(token_N), self._embedding)
        y_NE = None
        for index, layer in enumerate(self._layers):
            qkv_NF = layer.qkv(do.normed_sum(x_NE, y_NE, layer.before_attention))
            heads = do.rotated(qkv_NF, layer.q_norm, layer.k_norm)
            seen_NF = attend(index, *(each[:count] for each in heads)).flatten(1)
            if wanted is not None and layer is self._layers[-1]:
                x_NE, seen_NF, count = x_NE[self._even(wanted)], seen_NF[wanted], len(wanted)
                if not count:
                    return x_NE
            y_NE = layer.out(self._even(seen_NF))
            gate_up_NF = layer.gate_up(do.normed_sum(x_NE, y_NE, layer.before_mlp))
            y_NE = layer.down(do.gated(gate_up_NF))
        return (x_NE if y_NE is None else x_NE.add_(y_NE))[:count]

    def logits(self, x_NE: Tensor) -> Tensor:
        """The scores of the next word, [N, V]."""
        normed_NE = self._arithmetic.normed_sum(x_NE, None, self._norm)
        if not self._wide:
            return self._head(self._even(normed_NE))[: len(x_NE)]
        if self._wide_head is None and self.device.type == "cpu":
            self._wide_head = self._head.weight.float()
        head_VE = self._head.weight if self._wide_head is None else self._wide_head
        return float32_logits(normed_NE if self._wide_head is None else normed_NE.float(), head_VE)

    def _even(self, rows_N: Tensor) -> Tensor:
        """With rows of zeros after them, up to a number that products like."""
        spare = -len(rows_N) % self.grain
        return functional.pad(rows_N, (0, 0) * (rows_N.dim() - 1) + (0, spare)) if spare else rows_N


def _grain(dtype: torch.dtype, device: torch.device) -> int:
    """Tiles of 16 rows are what AMX has; with fewer, products take twice as long. And every other number of rows is
    another kernel to make and keep."""
    tiled = device.type == "cpu" and dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return 16 if tiled else 1


def _arithmetic(model: PreTrainedModel, shape: Shape, dtype: torch.dtype, *, fused: bool) -> Arithmetic:
    """With cosines and sines for every position, by the model's own rule."""
    positions = torch.arange(shape.context, device=model.device)[None]
    cos_1TD, sin_1TD = model.model.rotary_emb(torch.zeros(1, dtype=dtype, device=model.device), positions)
    made = (shape.heads, shape.kv_heads, shape.epsilon, cos_1TD[0], sin_1TD[0])
    if (between := between_for(cos_1TD)) is not None:
        return NativeArithmetic(*made, between)
    if not fused:
        return PlainArithmetic(*made)
    from dojang.engine.triton_kernels import FusedArithmetic  # loads Triton, which is for GPUs

    return FusedArithmetic(*made)


def _layer(named: Mapping[str, Tensor], prefix: str, copied: Callable[..., Tensor]) -> _Layer:
    def take(name: str) -> Tensor | None:
        return copied(prefix + name) if prefix + name in named else None

    def linear(*names: str) -> Linear:
        weights = [f"{prefix}{name}.weight" for name in names]
        biases = [f"{prefix}{name}.bias" for name in names if f"{prefix}{name}.bias" in named]
        return Linear(copied(*weights), [len(named[each]) for each in weights], copied(*biases) if biases else None)

    return _Layer(
        before_attention=copied(f"{prefix}input_layernorm.weight"),
        qkv=linear(*_QKV),
        q_norm=take("self_attn.q_norm.weight"),
        k_norm=take("self_attn.k_norm.weight"),
        out=linear("self_attn.o_proj"),
        before_mlp=copied(f"{prefix}post_attention_layernorm.weight"),
        gate_up=linear(*_GATE_UP),
        down=linear("mlp.down_proj"),
    )


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")


def _linears(layer: _Layer) -> tuple[Linear, ...]:
    return layer.qkv, layer.out, layer.gate_up, layer.down


def _layer_weights(layer: _Layer, prefix: str) -> dict[str, Tensor]:
    found = {
        "input_layernorm.weight": layer.before_attention,
        "post_attention_layernorm.weight": layer.before_mlp,
    }
    if layer.q_norm is not None and layer.k_norm is not None:
        found |= {"self_attn.q_norm.weight": layer.q_norm, "self_attn.k_norm.weight": layer.k_norm}
    for linear, names in (
        (layer.qkv, _QKV),
        (layer.out, ("self_attn.o_proj",)),
        (layer.gate_up, _GATE_UP),
        (layer.down, ("mlp.down_proj",)),
    ):
        for name, (weight, bias) in zip(names, linear.parts(), strict=True):
            found[f"{name}.weight"] = weight
            if bias is not None:
                found[f"{name}.bias"] = bias
    return {prefix + name: tensor for name, tensor in found.items()}

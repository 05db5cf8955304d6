"""Decoder for inference: fused weights, no padding, no gradients. `architectures.py` describes the supported models.

The tokens of all sequences are concatenated, N in all, so that every linear layer is one matrix product. Only attention
knows which token belongs to which sequence; the caller passes it in: `attend(layer, q, k, v)` stores keys and values
and returns the attention output. The arithmetic follows transformers step by step, so that both agree up to rounding.

Shapes: N tokens, H query heads, K key/value heads, D head size, E hidden size, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from dojang.core.errors import ModelError
from dojang.core.output_head import float32_logits
from dojang.engine.architectures import FAMILIES, Family
from dojang.engine.cpu_ops import compiled_elementwise_for
from dojang.engine.elementwise import CppElementwise, Elementwise, ElementwiseSettings, TorchElementwise
from dojang.engine.layer import Layer, load_layer
from dojang.engine.linear import Linear
from dojang.engine.mlp import GateMul
from dojang.engine.shape import Shape

__all__ = ["Attend", "Decoder"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


_CHEAP_ROWS_CPU = 3
"""Without matrix units: products with two or three rows take hardly longer than with one, with four much longer."""
_CHEAP_ROWS_GPU = 32


class Decoder:
    """Fused inference weights of a model."""

    def __init__(
        self,
        model: PreTrainedModel,
        dtype: torch.dtype | None = None,
        *,
        float32_head: bool = False,
        fp8: bool = False,
    ) -> None:
        """Copy a model's weights, in their precision or in `dtype`. With `float32_head`, logits are not rounded to half
        precision; with `fp8`, the linear layers are computed in 8 bits, but for the output head."""
        config = model.config
        self.shape, family = Shape.of(config), FAMILIES[config.model_type]
        self.dtype, self.device = dtype or model.dtype, model.device
        named = {name: each.detach() for name, each in model.named_parameters()}
        self._embedding = named["model.embed_tokens.weight"].to(self.dtype, copy=True)
        self._norm = named["model.norm.weight"].to(self.dtype, copy=True)
        self._tied = "lm_head.weight" not in named
        head = self._embedding if self._tied else named["lm_head.weight"].to(self.dtype, copy=True)
        self._head = Linear(head, [self.shape.vocabulary])
        self._layers = [load_layer(named, at, config, family, self.dtype, fp8=fp8) for at in range(self.shape.layers)]
        self._embedding_scale = _embedding_scale(model, self.dtype) if family.scales_embedding else None
        self._softcap: float = (config.final_logit_softcapping or 0.0) if family.logits_softcap else 0.0
        self._ropes, self._layer_ropes = _ropes(model, self.shape, family, self.dtype)
        self.fused = self.device.type == "cuda" and self.dtype is not torch.float64 and self._fits_triton(family)
        """Whether it uses the Triton kernels and CUDA graphs: on a GPU, except in double precision."""
        self._elementwise = self._make_elementwise(family)
        self._gate_mul = _gate_mul(config, family, self._elementwise)
        self._wide = float32_head and self.dtype in (torch.bfloat16, torch.float16)
        self._wide_head: Tensor | None = None
        """Output head in float32, on devices without a half-precision product that returns float32."""
        self.row_multiple = _row_multiple(self.dtype, self.device)
        """Matrix products get a multiple of this many rows."""
        if unknown := sorted(set(named) - set(self.weights)):
            raise ModelError(
                f"{type(model).__name__} has {len(unknown)} weights that the torch engine does not compute with, first "
                f"{unknown[0]}; use another model or rollout.engine.name=vllm"
            )

    @property
    def weights(self) -> dict[str, Tensor]:
        """Views of all weights by their checkpoint names. Call `refresh` after writing into one."""
        found = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if not self._tied:
            found["lm_head.weight"] = self._head.weight
        for index, layer in enumerate(self._layers):
            found |= {f"model.layers.{index}.{name}": each for name, each in layer.weights.items()}
        return found

    def refresh(self) -> None:
        """Drop everything derived from the weights, after they have changed."""
        self._wide_head = None
        for linear in (self._head, *(each for layer in self._layers for each in layer.linears)):
            linear.refresh()

    def cheap_rows(self, count: int) -> int:
        """Rows of a decode step that take hardly longer than `count` rows: all read the same weights."""
        if self.row_multiple > 1 and not self._wide:  # a head in float32 is not padded
            return -(-count // self.row_multiple) * self.row_multiple
        if self.device.type == "cpu":
            return max(count, 1 if self.dtype is torch.bfloat16 else _CHEAP_ROWS_CPU)
        return max(count, _CHEAP_ROWS_GPU)

    def forward(self, token_N: Tensor, position_N: Tensor, attend: Attend, wanted: Tensor | None = None) -> Tensor:
        """Return the last layer's hidden states, [N, E], of all tokens or of those at the indices `wanted`."""
        ops, count = self._elementwise, len(token_N)
        ops.set_positions(self._pad_rows(position_N))
        x_NE = functional.embedding(self._pad_rows(token_N), self._embedding)
        if self._embedding_scale is not None:
            x_NE = x_NE * self._embedding_scale
        y_NE = None
        for index, layer in enumerate(self._layers):
            heads = self._heads(layer, self._layer_ropes[index], self._add_norm(x_NE, y_NE, layer.before_attention))
            attended_NF = attend(index, *(each[:count] for each in heads)).flatten(1)
            if wanted is not None and layer is self._layers[-1]:
                x_NE, attended_NF, count = x_NE[self._pad_rows(wanted)], attended_NF[wanted], len(wanted)
                if not count:
                    return x_NE
            y_NE = layer.out(self._pad_rows(attended_NF))
            if layer.after_attention is not None:
                y_NE = ops.add_rms_norm(y_NE, None, layer.after_attention)
            y_NE = layer.mlp(self._add_norm(x_NE, y_NE, layer.before_mlp), self._gate_mul)
            if layer.after_mlp is not None:
                y_NE = ops.add_rms_norm(y_NE, None, layer.after_mlp)
        return (x_NE if y_NE is None else x_NE.add_(y_NE))[:count]

    def _add_norm(self, x_NE: Tensor, y_NE: Tensor | None, weight_E: Tensor | None) -> Tensor:
        """Add y to x in place, and return the sum, normalised if the layer has a norm here."""
        if weight_E is not None:
            return self._elementwise.add_rms_norm(x_NE, y_NE, weight_E)
        return x_NE if y_NE is None else x_NE.add_(y_NE)

    def _heads(self, layer: Layer, rope: int | None, x_NE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, [N, heads, D]."""
        ops, qkv_NF = self._elementwise, layer.qkv(x_NE)
        if layer.q_norm is None or layer.k_norm is None or not layer.norms_whole_rows:
            return ops.rotary(qkv_NF, layer.q_norm, layer.k_norm, rope)
        sizes = [len(layer.q_norm), len(layer.k_norm), len(layer.k_norm)]
        q_NF, k_NF, v_NF = (each.contiguous() for each in qkv_NF.split_with_sizes(sizes, 1))
        q_NF, k_NF = ops.add_rms_norm(q_NF, None, layer.q_norm), ops.add_rms_norm(k_NF, None, layer.k_norm)
        return ops.rotary(torch.cat((q_NF, k_NF, v_NF), 1), None, None, rope)

    def logits(self, x_NE: Tensor) -> Tensor:
        """Return the logits of the next token, [N, V]."""
        logits_NV = self._uncapped_logits(x_NE)
        if not self._softcap:
            return logits_NV
        wide_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
        return (wide_NV / self._softcap).tanh_().mul_(self._softcap)

    def _uncapped_logits(self, x_NE: Tensor) -> Tensor:
        normed_NE = self._elementwise.add_rms_norm(x_NE, None, self._norm)
        if not self._wide:
            return self._head(self._pad_rows(normed_NE))[: len(x_NE)]
        if self._wide_head is None and self.device.type == "cpu":
            self._wide_head = self._head.weight.float()
        head_VE = self._head.weight if self._wide_head is None else self._wide_head
        return float32_logits(normed_NE if self._wide_head is None else normed_NE.float(), head_VE)

    def _pad_rows(self, rows_N: Tensor) -> Tensor:
        """Append rows of zeros up to the next multiple of `row_multiple`."""
        missing = -len(rows_N) % self.row_multiple
        return functional.pad(rows_N, (0, 0) * (rows_N.dim() - 1) + (0, missing)) if missing else rows_N

    def _fits_triton(self, family: Family) -> bool:
        """Whether the Triton kernels compute this model: full attention with the usual scale, one rotary embedding of
        whole heads, plain norms before attention and MLP, no experts."""
        shape = self.shape
        return (
            not any(shape.windows)
            and not shape.softcap
            and shape.scale == shape.head**-0.5
            and self._layer_ropes == [0] * shape.layers
            and self._ropes[0][0].shape[1] == shape.head
            and not family.norm_offset
            and not any(layer.has_experts or layer.norms_whole_rows for layer in self._layers)
        )

    def _make_elementwise(self, family: Family) -> Elementwise:
        """Choose the element-wise implementation."""
        shape = self.shape
        settings = ElementwiseSettings(
            shape.heads, shape.kv_heads, shape.head, shape.epsilon, self._ropes, family.norm_offset
        )
        if (compiled := compiled_elementwise_for(self._norm)) is not None:
            return CppElementwise(settings, compiled)
        if not self.fused:
            return TorchElementwise(settings)
        from dojang.engine.triton_kernels import TritonElementwise  # loads Triton

        return TritonElementwise(settings)


def _row_multiple(dtype: torch.dtype, device: torch.device) -> int:
    """Rows per AMX tile: 16. Products with fewer take twice as long, and every other number of rows makes another
    kernel."""
    tiled = device.type == "cpu" and dtype is torch.bfloat16 and torch.cpu._is_amx_tile_supported()
    return 16 if tiled else 1


def _embedding_scale(model: Any, dtype: torch.dtype) -> Tensor:
    scale: Tensor = model.get_input_embeddings().embed_scale.to(dtype)
    return scale.clone()


def _gate_mul(config: Any, family: Family, ops: Elementwise) -> GateMul:
    """Gated activation of the MLP."""
    name = getattr(config, family.activation_key)
    if name in ("silu", "swish"):
        return ops.silu_mul
    activation = ACT2FN[name]

    def gate_mul(gate_up_NF: Tensor) -> Tensor:
        gate, up = gate_up_NF.chunk(2, -1)
        result: Tensor = activation(gate) * up
        return result

    return gate_mul


def _ropes(
    model: PreTrainedModel, shape: Shape, family: Family, dtype: torch.dtype
) -> tuple[list[tuple[Tensor, Tensor]], list[int | None]]:
    """Rotary embeddings of a model (cosines and sines for every position), and the index of each layer's."""
    config, x = model.config, torch.zeros(1, dtype=dtype, device=model.device)
    positions = torch.arange(shape.context, device=model.device)[None]
    if family.rope_by_layer_type:
        kinds = sorted(set(config.layer_types))
        tables = [model.model.rotary_emb(x, positions, kind) for kind in kinds]
        layers: list[int | None] = [kinds.index(kind) for kind in config.layer_types]
    else:
        tables = [model.model.rotary_emb(x, positions)]
        has_rope = getattr(config, "no_rope_layers", None) or [1] * shape.layers  # 1: has a rotary embedding
        layers = [0 if each else None for each in has_rope]
    return [(cos_1TR[0].to(dtype), sin_1TR[0].to(dtype)) for cos_1TR, sin_1TR in tables], layers

"""Weights of one decoder layer, with their names in a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dojang.engine.architectures import Family
from dojang.engine.linear import Linear
from dojang.engine.mlp import DenseMlp, Experts, Mlp

__all__ = ["Layer", "load_layer"]

_OUT = "self_attn.o_proj"
_DOWN = "mlp.down_proj"
_QK_NORMS = ("self_attn.q_norm", "self_attn.k_norm")


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer."""

    before_attention: Tensor | None
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    norms_whole_rows: bool
    """Whether the norms of queries and keys span all heads, instead of one head."""
    out: Linear
    after_attention: Tensor | None
    before_mlp: Tensor | None
    mlp: Mlp
    after_mlp: Tensor | None
    has_experts: bool
    weights: Mapping[str, Tensor]
    """Views of all weights, by their names within the layer."""

    @property
    def linears(self) -> list[Linear]:
        return [self.qkv, self.out, *self.mlp.linears]


def load_layer(
    named: Mapping[str, Tensor], index: int, config: Any, family: Family, dtype: torch.dtype, *, fp8: bool
) -> Layer:
    """Copy the weights of a layer out of a model's parameters."""
    prefix = f"model.layers.{index}."

    def copied(names: Sequence[str]) -> Tensor:
        return torch.cat([named[prefix + name].to(dtype) for name in names])

    def linear(names: Sequence[str]) -> Linear:
        sizes = [len(named[f"{prefix}{name}.weight"]) for name in names]
        has_bias = f"{prefix}{names[0]}.bias" in named
        bias = copied([f"{name}.bias" for name in names]) if has_bias else None
        return Linear(copied([f"{name}.weight" for name in names]), sizes, bias, fp8=fp8)

    qk_norms = () if family.qk_norm == "none" else _QK_NORMS
    places = (family.norm_before_attention, family.norm_after_attention, family.norm_before_mlp, family.norm_after_mlp)
    norms = {name: copied([f"{name}.weight"]) for name in (*places, *qk_norms) if name is not None}
    before_attention, after_attention, before_mlp, after_mlp, q_norm, k_norm = (
        None if name is None else norms.get(name) for name in (*places, *_QK_NORMS)
    )
    qkv, out = linear(family.qkv), linear([_OUT])
    has_experts = family.experts and f"{prefix}mlp.gate.weight" in named
    mlp: Mlp
    if has_experts:
        experts = (copied([name]) for name in ("mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"))
        mlp = Experts(*experts, fp8=fp8, top_k=config.num_experts_per_tok, normalise=config.norm_topk_prob)
    else:
        mlp = DenseMlp(linear(family.gate_up), family.gate_up, linear([_DOWN]), _DOWN)
    norm_weights = {f"{name}.weight": each for name, each in norms.items()}
    return Layer(
        before_attention=before_attention,
        qkv=qkv,
        q_norm=q_norm,
        k_norm=k_norm,
        norms_whole_rows=family.qk_norm == "all_heads",
        out=out,
        after_attention=after_attention,
        before_mlp=before_mlp,
        mlp=mlp,
        after_mlp=after_mlp,
        has_experts=has_experts,
        weights={**norm_weights, **qkv.named(family.qkv), **out.named([_OUT]), **mlp.weights},
    )

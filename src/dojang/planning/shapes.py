"""Sizes of a model from its config.json alone, without weights or torch: every family that the torch engine computes.

The number of parameters is a formula over engine/architectures.py. Building the model on torch's meta device would need
none, but loading transformers' model classes takes seconds, and the checks of `dojang launch sagemaker` must load
neither torch nor transformers. A test compares the formula with such models.

A table has the models of shipped recipes, for machines without the hub.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dojang import models
from dojang.core.errors import ModelError
from dojang.engine.architectures import FAMILIES, Family, max_length, support

__all__ = ["KNOWN", "Shape", "find_shape", "shape_of"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model that memory and time depend on."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    context: int
    model_type: str = "llama"
    tied: bool = False
    """Whether the output head shares the embedding's weights."""
    attention_bias: bool = False
    mlp_bias: bool = False
    silu: bool = True
    """Whether the MLP's activation function is SiLU."""
    attention_softcap: bool = False
    experts: int = 0
    token_experts: int = 0
    """Number of experts that a token uses."""
    expert_mlp: int = 0
    """MLP size of an expert."""
    expert_layers: tuple[int, ...] = ()
    """Layers with experts instead of a dense MLP."""

    @property
    def family(self) -> Family:
        return FAMILIES[self.model_type]

    @property
    def queries(self) -> int:
        """Size of all query heads together."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head

    @property
    def token_mlp(self) -> int:
        """MLP size of a token, of all experts that it uses; the mean over the layers."""
        sparse = len(self.expert_layers)
        return ((self.layers - sparse) * self.mlp + sparse * self.token_experts * self.expert_mlp) // self.layers

    @property
    def routed(self) -> int:
        """Inputs of all experts that a token uses; the mean over the layers."""
        return len(self.expert_layers) * self.token_experts * self.hidden // self.layers

    @property
    def qk_norm(self) -> bool:
        return self.family.qk_norm != "none"

    @property
    def fused_norms(self) -> bool:
        """Whether the trainer's fused norms compute those of this family."""
        return not self.family.norm_offset

    @property
    def fused_mlp(self) -> bool:
        """Whether the trainer's fused MLP computes that of this model."""
        return self.silu and len(self.family.gate_up) == 2

    def linears(self) -> Iterator[tuple[str, int, int]]:
        """Names of the linear layers of all layers, with their input and output sizes; experts are none of them."""
        e, a, k, f, family = self.hidden, self.queries, self.keys, self.mlp, self.family
        qkv, gate_up = (a, k, k), (f, f)
        attention = list(zip(family.qkv, qkv if len(family.qkv) == 3 else [sum(qkv)], strict=True))
        mlp = list(zip(family.gate_up, gate_up if len(family.gate_up) == 2 else [sum(gate_up)], strict=True))
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            yield from ((prefix + name, e, size) for name, size in attention)
            yield f"{prefix}self_attn.o_proj", a, e
            if layer not in self.expert_layers:
                yield from ((prefix + name, e, size) for name, size in mlp)
                yield f"{prefix}mlp.down_proj", f, e

    @property
    def linear(self) -> int:
        """Number of weights in the linear layers of all layers."""
        return sum(inputs * outputs for _, inputs, outputs in self.linears())

    @property
    def _expert(self) -> int:
        return 3 * self.hidden * self.expert_mlp

    @property
    def projected(self) -> int:
        """Number of weights in the matrices of all layers: linear layers, experts and their routers."""
        return self.linear + len(self.expert_layers) * self.experts * (self._expert + self.hidden)

    @property
    def multiplied(self) -> int:
        """Number of weights in matrix products: of the layers and of the output head. The embedding is looked up."""
        return self.projected + self.vocabulary * self.hidden

    def unused(self, tokens: int = 1) -> int:
        """Number of weights of the experts that no token uses, if no two of the tokens share an expert."""
        return len(self.expert_layers) * max(0, self.experts - tokens * self.token_experts) * self._expert

    @property
    def embedded(self) -> int:
        """Number of weights of the embedding, and of an untied head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        e, a, k, family = self.hidden, self.queries, self.keys, self.family
        dense = self.layers - len(self.expert_layers)
        attention_norms = (family.norm_before_attention, family.norm_after_attention)
        norms = e * sum(each is not None for each in (*attention_norms, family.norm_before_mlp, family.norm_after_mlp))
        norms += {"none": 0, "head": 2 * self.head, "all_heads": a + k}[family.qk_norm]
        biases = a + 2 * k if family.qkv_bias or self.attention_bias else 0
        biases += e if self.attention_bias else 0
        mlp_biases = dense * (2 * self.mlp + e) if self.mlp_bias else 0
        return self.embedded + self.projected + self.layers * (norms + biases) + mlp_biases + e

    @property
    def kv_numbers(self) -> int:
        """KV cache numbers of one token."""
        return 2 * self.layers * self.keys


_QWEN25_05B = Shape(896, 24, 14, 2, 64, 4864, 151936, 32768, "qwen2", tied=True)
_DISTILL_7B = Shape(3584, 28, 28, 4, 128, 18944, 152064, 131072, "qwen2")
KNOWN: Mapping[str, Shape] = {
    "Qwen/Qwen2.5-0.5B": _QWEN25_05B,
    "Qwen/Qwen2.5-0.5B-Instruct": _QWEN25_05B,
    "Qwen/Qwen3-8B": Shape(4096, 36, 32, 8, 128, 12288, 151936, 40960, "qwen3"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": _DISTILL_7B,
    "models/codefu-7b-stage1": _DISTILL_7B,  # exported from stage 1 for codefu-7b-stage2
}
"""Shapes by the names in recipes."""


def find_shape(name: str, *, torch_engine: bool = False) -> tuple[Shape | None, str]:
    """Shape of a model and its source; None and the reason if it is unknown. `torch_engine`: its context is that of the
    torch engine. Raises ModelError if there is no such model."""
    try:
        config = models.read_config(name)
    except ModelError:
        if name not in KNOWN:
            raise
        config = None
    if config is not None:
        try:
            shape = shape_of(config)
            context = (max_length(config) if torch_engine else None) or shape.context
            return replace(shape, context=context), "its config.json"
        except ModelError as error:
            return None, str(error)
    if name in KNOWN:
        return KNOWN[name], "the table of known shapes"
    return None, "it is neither on this machine nor in the table of known shapes; download it, or give a directory"


def shape_of(config: Mapping[str, Any]) -> Shape:
    """Shape from a config.json. Raises ModelError for a family that the torch engine does not compute."""
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        known = ", ".join(family.title for family in FAMILIES.values())
        raise ModelError(f"{support(config).reason}; plans are made for {known}")
    family = FAMILIES[kind]
    try:
        hidden, layers, heads = (
            int(config[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        count = "num_experts" if "num_experts" in config else "num_local_experts"  # hub; transformers 5
        experts = int(config[count]) if family.experts else 0
        return Shape(
            hidden,
            layers,
            heads,
            config.get("num_key_value_heads") or heads,
            config.get("head_dim") or family.head_dim or hidden // heads,
            mlp=config["intermediate_size"],
            vocabulary=config["vocab_size"],
            context=config["max_position_embeddings"],
            model_type=kind,
            tied=config.get("tie_word_embeddings", family.tied),
            attention_bias=config.get("attention_bias", False),
            mlp_bias=config.get("mlp_bias", False),
            silu=(config.get(family.activation_key) or family.activation) in ("silu", "swish"),
            attention_softcap=family.attention_softcap and config.get("attn_logit_softcapping", True) is not None,
            experts=experts,
            token_experts=config["num_experts_per_tok"] if experts else 0,
            expert_mlp=config["moe_intermediate_size"] if experts else 0,
            expert_layers=tuple(_expert_layers(config, layers)) if experts else (),
        )
    except KeyError as error:
        raise ModelError(f"its config.json has no {error.args[0]}") from error


def _expert_layers(config: Mapping[str, Any], layers: int) -> Iterator[int]:
    dense, step = config.get("mlp_only_layers") or (), config.get("decoder_sparse_step") or 1
    return (layer for layer in range(layers) if layer not in dense and (layer + 1) % step == 0)

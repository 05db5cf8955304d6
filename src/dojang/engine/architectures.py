"""Model architectures that the torch engine computes, and the check of a config.json against them. Imports no torch.

A `Family` describes how a decoder differs from Llama; `decoder.py` reads it. To support another family, add one here
and a tiny model of it to tests/tiny_models.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["FAMILIES", "Family", "Support", "max_length", "support"]


@dataclass(frozen=True, slots=True)
class Family:
    """Differences of a decoder from Llama: names of its weights, norms, attention and MLP."""

    title: str
    causal_lm: str
    """Class of the model in transformers."""
    norm_before_attention: str | None = "input_layernorm"
    norm_after_attention: str | None = None
    norm_before_mlp: str | None = "post_attention_layernorm"
    norm_after_mlp: str | None = None
    norm_offset: float = 0.0
    """RMS norms multiply by this plus their weight."""
    qk_norm: Literal["none", "head", "all_heads"] = "none"
    """RMS norms of queries and keys: none, one over each head, or one over all heads."""
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    qkv_bias: bool = False
    """Whether they always have biases; otherwise config.attention_bias says so, for the output projection too."""
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    head_dim: int | None = None
    """Head size if config.json has none; None: the hidden size divided by the number of heads."""
    tied: bool = False
    """Whether embedding and output head share their weights if config.json does not say."""
    windows: Literal["none", "all", "by_layer_type"] = "none"
    """Layers with sliding-window attention, if config.sliding_window is set."""
    rope_by_layer_type: bool = False
    """Whether windowed and other layers have their own rotary embedding."""
    scales_embedding: bool = False
    """Whether embeddings are multiplied by the square root of the hidden size."""
    query_scalar: bool = False
    """Whether attention scores are divided by the root of config.query_pre_attn_scalar, not of the head size."""
    attention_softcap: bool = False
    """Whether config.attn_logit_softcapping applies."""
    logits_softcap: bool = False
    """Whether config.final_logit_softcapping applies."""
    activation_key: str = "hidden_act"
    activation: str = "silu"
    """Activation function of the MLP if config.json has none."""
    experts: bool = False
    """Whether layers may have a mixture of experts."""


_GEMMA = {
    "norm_after_attention": "post_attention_layernorm",
    "norm_before_mlp": "pre_feedforward_layernorm",
    "norm_after_mlp": "post_feedforward_layernorm",
    "norm_offset": 1.0,
    "head_dim": 256,
    "tied": True,
    "windows": "by_layer_type",
    "scales_embedding": True,
    "query_scalar": True,
    "logits_softcap": True,
    "activation_key": "hidden_activation",
    "activation": "gelu_pytorch_tanh",
}
FAMILIES: Mapping[str, Family] = {
    "llama": Family("Llama", "LlamaForCausalLM"),
    "qwen2": Family("Qwen2", "Qwen2ForCausalLM", qkv_bias=True, windows="by_layer_type"),
    "qwen3": Family("Qwen3", "Qwen3ForCausalLM", qk_norm="head", head_dim=128, windows="by_layer_type"),
    "qwen3_moe": Family("Qwen3-MoE", "Qwen3MoeForCausalLM", qk_norm="head", windows="all", experts=True),
    "mistral": Family("Mistral", "MistralForCausalLM", windows="all"),
    "smollm3": Family("SmolLM3", "SmolLM3ForCausalLM", tied=True, windows="by_layer_type"),
    "phi3": Family(
        "Phi-3, Phi-4",
        "Phi3ForCausalLM",
        qkv=("self_attn.qkv_proj",),
        gate_up=("mlp.gate_up_proj",),
        windows="all",
    ),
    "olmo2": Family(
        "OLMo 2",
        "Olmo2ForCausalLM",
        norm_before_attention=None,
        norm_after_attention="post_attention_layernorm",
        norm_before_mlp=None,
        norm_after_mlp="post_feedforward_layernorm",
        qk_norm="all_heads",
    ),
    "gemma2": Family("Gemma 2", "Gemma2ForCausalLM", attention_softcap=True, **_GEMMA),  # type: ignore[arg-type]
    "gemma3_text": Family(
        "Gemma 3 (text)",
        "Gemma3ForCausalLM",
        qk_norm="head",
        rope_by_layer_type=True,
        **_GEMMA,  # type: ignore[arg-type]
    ),
}
"""Families by the model_type of config.json."""
_ACTIVATIONS = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
_ROPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
_LAYER_TYPES = ("full_attention", "sliding_attention")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True, slots=True)
class Support:
    """The built-in engine for a model."""

    engine: Literal["torch", "generate", "none"]
    """torch: TorchEngine. generate: the slow GenerateEngine, on transformers' `generate`. none: no causal LM."""
    family: str
    """Name of the architecture."""
    reason: str = ""
    """Why the engine is not torch."""

    @property
    def message(self) -> str:
        """One line for the user."""
        fast = ", ".join(family.title for family in FAMILIES.values())
        match self.engine:
            case "torch":
                return f"{self.family}: computed by the torch engine"
            case "generate":
                return (
                    f"{self.reason}, so rollouts use transformers' generate, which is SLOW (no continuous batching, no "
                    f"shared prefill); fast are {fast}, or use vLLM"
                )
            case _:
                return f"{self.reason}; dojang needs a causal language model"


def support(config: Mapping[str, Any]) -> Support:
    """Built-in engine for a model: `support(json.loads(Path(model, "config.json").read_text())).engine`."""
    kind = str(config.get("model_type") or "")
    classes = [str(each) for each in config.get("architectures") or ()]
    family = FAMILIES.get(kind)
    if config.get("is_encoder_decoder") or (classes and not any(each.endswith(_CAUSAL) for each in classes)):
        return Support("none", kind, f"the model is of class {', '.join(classes) or kind}")
    if family is None:
        return Support("generate", kind, f"the torch engine does not know model_type={kind!r}")
    if reasons := _unsupported(config, family, classes):
        why = f"the torch engine does not compute {family.title} with {' and '.join(reasons)}"
        return Support("generate", family.title, why)
    return Support("torch", family.title)


def _unsupported(config: Mapping[str, Any], family: Family, classes: list[str]) -> list[str]:
    """Settings of a config.json that change the results in a way the engine does not compute."""
    activation = config.get(family.activation_key) or config.get("hidden_act") or family.activation
    types = [str(each) for each in config.get("layer_types") or ()]
    other_types = sorted(set(types) - set(_LAYER_TYPES))
    other_ropes = [each for each in _rope_types(config) if each not in _ROPES]
    softcaps = [
        key
        for key, known in (
            ("attn_logit_softcapping", family.attention_softcap),
            ("final_logit_softcapping", family.logits_softcap),
        )
        if config.get(key) is not None and not known
    ]
    checks = (
        (classes and family.causal_lm not in classes, f"architectures={classes}"),
        (config.get("auto_map") and not classes, "its own code (auto_map)"),
        (config.get("quantization_config"), "quantized weights (quantization_config)"),
        (activation not in _ACTIVATIONS, f"{family.activation_key}={activation!r}"),
        (config.get("use_bidirectional_attention"), "use_bidirectional_attention"),
        (softcaps, ", ".join(f"{key}={config.get(key)}" for key in softcaps)),
        (other_types, f"layer_types of {', '.join(other_types)}"),
        (family.windows == "none" and "sliding_attention" in types, "sliding-window layers"),
        (other_ropes, f"rope_type={', '.join(other_ropes)}"),
    )
    return [what for found, what in checks if found]


def max_length(config: Mapping[str, Any]) -> int | None:
    """Longest sequence that the torch engine computes; None if config.json has no limit.

    LongRoPE has two sets of frequencies, and longer sequences use the second from their first token on: tokens decoded
    before would have needed it too, so only the first set is used.
    """
    lengths = [config.get("max_position_embeddings")]
    if "longrope" in _rope_types(config):
        key = "original_max_position_embeddings"
        lengths += [each[key] for each in _ropes(config) if each.get(key)] or [config.get(key)]
    return min((int(each) for each in lengths if each), default=None)


def _rope_types(config: Mapping[str, Any]) -> list[str]:
    """Kinds of rotary embedding."""
    kinds = [each.get("rope_type") or each.get("type") or "default" for each in _ropes(config)]
    return ["longrope" if kind == "su" else str(kind) for kind in kinds]


def _ropes(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Settings of rotary embeddings, under the key of transformers 5 (rope_parameters) or the older one
    (rope_scaling)."""
    found = [each for key in ("rope_parameters", "rope_scaling") if isinstance(each := config.get(key), Mapping)]
    return found + [inner for each in found for inner in each.values() if isinstance(inner, Mapping)]

"""Dimensions and attention settings of a model, from its transformers config."""

from dataclasses import dataclass
from typing import Any

from dojang.core.errors import ModelError
from dojang.engine.architectures import FAMILIES, max_length, support

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Dimensions of a model and settings of its attention."""

    layers: int
    heads: int
    kv_heads: int
    head: int
    vocabulary: int
    context: int
    epsilon: float
    scale: float
    """Factor of attention scores."""
    windows: tuple[int, ...]
    """Sliding window of each layer, in tokens including the current one; 0: full attention."""
    softcap: float = 0.0
    """Attention scores become softcap * tanh(score / softcap); 0: unchanged."""

    @classmethod
    def of(cls, config: Any) -> "Shape":
        settings = config.to_dict()
        found = support(settings)
        if found.engine != "torch":
            raise ModelError(found.message)
        family = FAMILIES[config.model_type]
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        context = max_length(settings)
        assert context is not None, "models of these families have a limit"
        return cls(
            layers=config.num_hidden_layers,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head=head,
            vocabulary=config.vocab_size,
            context=context,
            epsilon=config.rms_norm_eps,
            scale=(config.query_pre_attn_scalar if family.query_scalar else head) ** -0.5,
            windows=tuple(0 if each >= context else each for each in _windows(config)),
            softcap=(config.attn_logit_softcapping or 0.0) if family.attention_softcap else 0.0,
        )


def _windows(config: Any) -> list[int]:
    kind, window = FAMILIES[config.model_type].windows, getattr(config, "sliding_window", None) or 0
    if kind == "by_layer_type":
        return [window if each == "sliding_attention" else 0 for each in config.layer_types]
    return [window if kind == "all" else 0] * config.num_hidden_layers

"""Tiny random models of every family that the torch engine supports, with each of their features."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
WINDOW = 6
"""Sliding window of the models that have one: less than the prompts of the tests."""
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"rope_type": "longrope", "short_factor": [1.5, 1.0, 2.0], "long_factor": [4.0, 4.0, 4.0]}
# Eager attention: SDPA in transformers 5.17 leaves the soft-capping of attention scores out.
SOFTCAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "attn_implementation": "eager"}
GEMMA: dict[str, Any] = {**SIZES, "head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": WINDOW}

MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "llama tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama with llama3 rope": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={**LLAMA3, "original_max_position_embeddings": 64})
    ),
    "llama with biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama with gelu": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "qwen2 with windows": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=32)),
    "qwen3_moe": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, **_experts(norm_topk_prob=True), head_dim=16, mlp_only_layers=[1])
    ),
    "qwen3_moe without normalised weights": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**SIZES, **_experts(norm_topk_prob=False), head_dim=16)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "mistral without windows": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None, head_dim=16)),
    "smollm3": lambda: SmolLM3ForCausalLM(SmolLM3Config(**SIZES, no_rope_layer_interval=2)),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**SIZES, sliding_window=WINDOW)),
    "phi3 with partial rotation": lambda: Phi3ForCausalLM(
        Phi3Config(
            **SIZES,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75},
            tie_word_embeddings=True,
        )
    ),
    "phi3 with longrope": lambda: Phi3ForCausalLM(
        Phi3Config(
            **SIZES,
            original_max_position_embeddings=64,
            rope_parameters={**LONGROPE, "rope_theta": 1e4, "partial_rotary_factor": 0.75},
        )
    ),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SIZES)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**GEMMA, **SOFTCAPS)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**GEMMA, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    ),
}
"""Makers by name. The first word is the model_type, or its beginning."""


def _experts(*, norm_topk_prob: bool) -> dict[str, Any]:
    return {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": norm_topk_prob,
    }


def tiny_model(name: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> PreTrainedModel:
    """A model with random weights: the same seed, the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODELS[name]()
        for key, parameter in model.named_parameters():
            # Biases and norms begin as 0 and 1, and would hide mistakes; so would a router that prefers no expert.
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, 1.0, 0.2)
            elif "mlp.gate.weight" in key:
                torch.nn.init.normal_(parameter, 0.0, 0.5)
    model.set_experts_implementation("eager")  # grouped products exist only in bfloat16 and float32
    return model.to(dtype).eval()

"""Families beyond those of the torch engine: which of them can be trained."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dojang.core.errors import ModelError
from dojang.trainer.forward import check_packed
from dojang.trainer.packed_attention import use_packed_attention
from dojang.trainer.untrainable import UNTRAINABLE, why_untrainable

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
MORE: dict[str, dict[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "codegen": {**GPT, "rotary_dim": 4},
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gpt_oss": {**EXPERTS, "head_dim": 8},
    "gptj": {**GPT, "rotary_dim": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 4},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "xglm": {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48},
}
TRAINED: dict[str, dict[str, Any]] = {
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25},
    "gemma": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "gpt2": GPT,
    "gpt_neox": {},
    "granite": {"logits_scaling": 3.0, "embedding_multiplier": 2.0, "attention_multiplier": 0.3},
    "granitemoe": {**EXPERTS, "logits_scaling": 2.0},
    "mixtral": EXPERTS,
    "olmo3": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "starcoder2": {},
}


def made(kind: str, more: dict[str, Any]) -> PreTrainedModel:
    """A tiny random model, with weights large enough to tell differences."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more})).eval()
    with torch.no_grad():
        for each in model.parameters():
            each.add_(torch.randn_like(each) * 0.1)
    return model


@pytest.mark.parametrize("kind", UNTRAINABLE)
def test_listed_families_are_refused_by_the_trainer(kind: str) -> None:
    model = made(kind, MORE.get(kind, {}))
    with pytest.raises(ModelError):  # noqa: PT012 -- either call may refuse it
        use_packed_attention(model)
        check_packed(model)


@pytest.mark.parametrize("kind", TRAINED)
def test_other_families_are_trained(kind: str) -> None:
    model = made(kind, TRAINED[kind])
    use_packed_attention(model)
    check_packed(model)
    assert why_untrainable(model.config.to_dict()) == ""

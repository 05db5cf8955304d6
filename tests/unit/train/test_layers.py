"""Norms that are one kernel."""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dojang.train.layers import fuse_norms

SIZES = {
    "vocab_size": 99,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize(
    ("model", "fused"),
    [
        (LlamaForCausalLM(LlamaConfig(**SIZES)), 2 * 2 + 1),
        (Qwen3ForCausalLM(Qwen3Config(**SIZES)), 2 * 4 + 1),
        (Gemma2ForCausalLM(Gemma2Config(**SIZES)), 0),  # whose weights count from 1
    ],
    ids=["llama", "qwen3", "gemma2"],
)
def test_fused_norms_change_nothing(model: PreTrainedModel, fused: int) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter += torch.linspace(-0.5, 0.5, len(parameter))
    words = torch.arange(1, 20)[None]
    results = []
    for _ in range(2):
        model.zero_grad()
        scores = model(input_ids=words).logits
        scores.log_softmax(-1)[..., 5].sum().backward()
        results.append((scores.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)))
        fuse_norms(model)
    assert sum("forward" in vars(module) for module in model.modules()) == fused
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)

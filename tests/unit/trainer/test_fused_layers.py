"""Norms and gated layers that keep less."""

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dojang.trainer.fused_layers import fuse_layers
from error_bounds import CLOSE

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
        (LlamaForCausalLM(LlamaConfig(**SIZES)), 2 * 3 + 1),
        (Qwen3ForCausalLM(Qwen3Config(**SIZES)), 2 * 5 + 1),
        (LlamaForCausalLM(LlamaConfig(**SIZES, mlp_bias=True)), 2 * 2 + 1),
        (LlamaForCausalLM(LlamaConfig(**SIZES, hidden_act="gelu")), 2 * 2 + 1),
        (Gemma2ForCausalLM(Gemma2Config(**SIZES)), 0),  # whose weights count from 1
    ],
    ids=["llama", "qwen3", "biases", "gelu", "gemma2"],
)
def test_fused_layers_compute_the_same(model: PreTrainedModel, fused: int) -> None:
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
        fuse_layers(model)
    assert sum("forward" in vars(module) for module in model.modules()) == fused
    for before, after in zip(*results, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=CLOSE * float(before.abs().max()))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # where a processor knows no bfloat16
def test_lighter_layers_keep_less() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES))

    def kept() -> int:
        """Bytes that are kept for gradients."""
        storages: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu"):
            model.model(input_ids=torch.arange(99).repeat(4)[None])
        own = {each.untyped_storage().data_ptr() for each in model.parameters()}
        return sum(each.untyped_storage().nbytes() for place, each in storages.items() if place not in own)

    before = kept()
    fuse_layers(model)
    assert kept() < 0.8 * before

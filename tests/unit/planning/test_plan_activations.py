"""Activations of layers with adapters, against the tensors that autograd saves, and of shared prompts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_subjects import subject
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config

from dojang.algos.grpo import GrpoConfig
from dojang.planning.estimate import estimate
from dojang.planning.instances import INSTANCES
from dojang.planning.shapes import shape_of
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.memory import layer_bytes
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def test_layers_with_adapters_save_what_was_planned(make_group: Callable[..., Group]) -> None:
    saved = [_saved_per_token(layers, make_group) for layers in (2, 4)]
    planned = layer_bytes(shape_of(Qwen2Config(**SIZES).to_dict()), "half", narrow=True, adapted=True)
    assert (saved[1] - saved[0]) / 2 == pytest.approx(planned, rel=0.1)


def _saved_per_token(layers: int, make_group: Callable[..., Group]) -> float:
    """Bytes per token that autograd saves, besides weights."""
    config = Qwen2Config(**SIZES, num_hidden_layers=layers)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    learner = TorchTrainer(
        model,
        None,
        None,  # type: ignore[arg-type]
        GrpoConfig().make(max_tokens=300),
        WeightVersions(torch.bfloat16),
        TrainConfig(max_tokens_per_microbatch=4000, lora=LoraConfig(rank=2)),
        total_updates=10,
        max_tokens=300,
        temperature=1.0,
        compute=torch.bfloat16,
    )
    (batch,) = learner._batches(make_group((0.0,), prompt=range(5, 8), answer=range(5, 261)).samples)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if len(batch.token_N) in tensor.shape:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        learner._policy(batch)[0].sum()
    return sum(kept.values()) / len(batch.token_N)


def test_a_shared_prompt_is_saved_for_each_of_its_samples() -> None:
    settings = "train.max_tokens_per_microbatch=16384", "rollout.group_size=8"
    short, long = (
        estimate(subject("smollm2-gsm8k", *settings, prompt=prompt, longest_prompt=400), INSTANCES["h200"])
        for prompt in (100, 300)
    )
    for found, prompt in ((short, 100), (long, 300)):
        assert found.work.copied_prompts("policy") == int(min(64, 16384 / (prompt + 8)) * 8 * prompt)
    known = estimate(subject("smollm2-gsm8k", *settings, prompt=300, longest_prompt=400, answer=60), INSTANCES["h200"])
    assert known.work.copied_prompts("policy") == int(16384 / (300 + 8 * 60) * 8 * 300)
    assert long.needs.parts["activations"] > short.needs.parts["activations"]

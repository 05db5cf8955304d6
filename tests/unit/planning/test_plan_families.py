"""Sizes of every family of the torch engine against transformers' models, on torch's meta device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_subjects import subject
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dojang.algos.grpo import GrpoConfig
from dojang.core.errors import ModelError
from dojang.engine.architectures import FAMILIES
from dojang.planning.estimate import estimate
from dojang.planning.instances import INSTANCES, Instance
from dojang.planning.shapes import shape_of
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.lora import Adapters
from dojang.trainer.memory import activation_bytes
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions
from tiny_models import MODELS

DEFAULTS = {"gemma2", "gemma3_text", "smollm3", "qwen3", "llama"}
"""Families whose published config.json may leave out tie_word_embeddings or head_dim."""

WIDE = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "vocab_size": 300}
WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


def meta_model(name: str) -> PreTrainedModel:
    with torch.device("meta"):
        return MODELS[name]()


def test_every_family_of_the_engine_has_a_tiny_model() -> None:
    assert {meta_model(name).config.model_type for name in MODELS} == FAMILIES.keys()


@pytest.mark.parametrize("name", MODELS)
def test_a_shape_has_the_parameters_and_linear_layers_of_its_model(name: str) -> None:
    model = meta_model(name)
    shape = shape_of(model.config.to_dict())
    assert shape.parameters == sum(each.numel() for each in model.parameters())
    linears = {
        key: (each.in_features, each.out_features)
        for key, each in model.named_modules()
        if isinstance(each, torch.nn.Linear) and key != "lm_head"
    }
    assert {key: sizes for key, *sizes in shape.linears()} == {key: list(sizes) for key, sizes in linears.items()}
    matrices = [each for key, each in model.named_parameters() if "layers." in key and each.dim() > 1]
    assert shape.projected == sum(each.numel() for each in matrices)


@pytest.mark.parametrize("kind", sorted(DEFAULTS))
def test_a_config_without_defaults_has_the_shape_that_transformers_gives_it(kind: str) -> None:
    given = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    given |= {"intermediate_size": 96, "vocab_size": 300, "max_position_embeddings": 256, "pad_token_id": 0}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **given))
    assert shape_of({"model_type": kind, **given}).parameters == sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", ()),
        ("phi3", ()),
        ("gemma3", ("o_proj", "down_proj")),
        ("llama", ("model.layers.1.self_attn.o_proj",)),
        ("qwen3_moe", ("q_proj", "self_attn.o_proj")),
    ],
)
def test_adapters_of_a_family_have_as_many_weights_as_planned(name: str, targets: tuple[str, ...]) -> None:
    pytest.importorskip("peft")
    model, lora = meta_model(name), LoraConfig(rank=4, target_modules=targets)
    Adapters(model, lora, "")
    added = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert lora.adapter_weights(shape_of(model.config.to_dict()).linears()) == added > 0


@pytest.mark.parametrize("name", MODELS)
def test_every_family_can_be_planned(name: str) -> None:
    asked = subject("quickstart", "train.lora={}", shape=shape_of(meta_model(name).config.to_dict()))
    for machine in (Instance("here", 2, 24.0), INSTANCES["h200"]):
        planned = estimate(asked, machine)
        assert planned.needs.peak > 0
        assert planned.times.step > 0


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_forward_pass_of_every_family_keeps_about_what_was_planned(
    kind: str, make_group: Callable[..., Group]
) -> None:
    extra = {**(MOE if FAMILIES[kind].experts else {}), "pad_token_id": 0, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **WIDE, **extra)).eval()
    learner = TorchTrainer(
        model,
        None,
        None,  # type: ignore[arg-type]  # for saving only
        GrpoConfig().make(max_tokens=300),
        WeightVersions(torch.float32),
        TrainConfig(max_tokens_per_microbatch=4000),
        total_updates=10,
        max_tokens=300,
        temperature=1.0,
        compute=torch.float32,
    )
    group = make_group((0.0, 1.0), prompt=range(5, 21), answer=range(5, 261))
    (batch,) = learner._batches(group.samples)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        learner._policy(batch)[0].sum()
    own = {each.untyped_storage().data_ptr() for each in model.parameters()}
    measured = sum(nbytes for place, nbytes in kept.items() if place not in own)
    one = activation_bytes(
        shape_of(model.config.to_dict()),
        "single",
        narrow=False,
        adapted=False,
        gradient_checkpointing=False,
        longest=272,
    )
    assert one * len(batch.token_N) == pytest.approx(measured, rel=0.15)


def test_experts_that_a_token_does_not_use_cost_memory_but_no_products() -> None:
    config = meta_model("qwen3_moe").config.to_dict()
    few, many = (shape_of({**config, "num_experts": count}) for count in (6, 60))
    assert many.parameters - many.unused() == pytest.approx(few.parameters - few.unused(), rel=0.1)
    assert many.parameters > 3 * few.parameters
    assert many.unused(tokens=30) == 0  # 30 tokens use two experts each


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba"}, "does not know model_type='mamba'; plans are made for Llama, Qwen2, "),
        ({"model_type": "t5", "is_encoder_decoder": True}, "the model is of class t5"),
        ({}, "does not know model_type=''"),
        ({"model_type": "llama", "hidden_size": 64}, "has no num_hidden_layers"),
        ({"model_type": "qwen3_moe", **dict.fromkeys(["hidden_size", "num_hidden_layers"], 8)}, "num_attention_heads"),
    ],
)
def test_a_model_without_a_shape_is_refused_with_the_reason(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        shape_of(config)

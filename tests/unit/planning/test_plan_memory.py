"""Formulas of memory against real tensors, and against what was measured on an H200."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from plan_subjects import H200_QWEN25, H200_SMOLLM2, subject
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config
from transformers import Qwen3Config as Qwen3

from dojang.algos.grpo import GrpoConfig
from dojang.engine.kv_cache import KvCache
from dojang.engine.shape import Shape as EngineShape
from dojang.engine.torch_engine import TorchEngine
from dojang.models.packages import MODELS
from dojang.planning.estimate import Estimate, estimate
from dojang.planning.instances import INSTANCES, Instance
from dojang.planning.kv_cache_memory import GIB, key_value_cache
from dojang.planning.shapes import KNOWN, Shape, shape_of
from dojang.trainer.config import LoraConfig, TrainConfig
from dojang.trainer.lora import Adapters
from dojang.trainer.memory import NF4_BYTES, activation_bytes
from dojang.trainer.optimizer import make_optimizer
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions

CPU = Instance("here", 2, 24.0)
SMALL: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
TRAINER = ("weights", "gradients", "optimizer", "copies", "activations", "scores")


def size(tensors: Iterable[Tensor]) -> int:
    return sum(each.nbytes for each in tensors)


def shaped(model: PreTrainedModel) -> Shape:
    return shape_of(model.config.to_dict())


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SMALL, tie_word_embeddings=True),
        LlamaConfig(**SMALL, tie_word_embeddings=False, attention_bias=False),
        Qwen2Config(**SMALL, tie_word_embeddings=True),
        Qwen3(**SMALL, head_dim=32),
    ],
)
def test_a_shape_has_as_many_weights_as_its_model(config: Any) -> None:
    model = AutoModelForCausalLM.from_config(config)
    assert shaped(model).parameters == sum(each.numel() for each in model.parameters())


def test_known_shapes_have_the_published_numbers_of_weights() -> None:
    published = {
        "Qwen/Qwen2.5-0.5B": 494_032_768,
        "Qwen/Qwen3-8B": 8_190_735_360,
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    }
    assert {name: KNOWN[name].parameters for name in published} == published


@pytest.fixture
def trainer(micro_model: Callable[..., PreTrainedModel]) -> tuple[TorchTrainer, PreTrainedModel]:
    model = micro_model(torch.float32)
    config = TrainConfig(lr=1e-3, max_tokens_per_microbatch=64)
    made = TorchTrainer(
        model,
        None,
        None,  # type: ignore[arg-type]  # for saving only
        GrpoConfig().make(max_tokens=9),
        WeightVersions(torch.float32),
        config,
        total_updates=10,
        max_tokens=9,
        temperature=1.0,
        compute=torch.float32,
    )
    return made, model


def test_a_trainer_keeps_what_was_planned(
    trainer: tuple[TorchTrainer, PreTrainedModel], make_group: Callable[..., Group]
) -> None:
    learner, model = trainer
    planned = estimate(subject("quickstart", "loop.mode=sync", shape=shaped(model)), CPU).needs.parts
    assert planned["weights"] == size(model.parameters())
    asyncio.run(learner.forward_backward([make_group((0.0, 1.0), advantage=1.0)]))
    assert planned["gradients"] == size(each.grad for each in model.parameters() if each.grad is not None)
    asyncio.run(learner.optim_step())
    state = [value for each in learner._optimizer.state.values() for value in each.values() if value.dim()]
    assert planned["optimizer"] == size(state)
    asyncio.run(learner.publish(1))
    store = learner._weights
    assert isinstance(store, WeightVersions)
    assert planned["weight store"] == size(store.fetch(1).values())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_optimizers_keep_what_was_planned(micro_model: Callable[..., PreTrainedModel], optimizer: str) -> None:
    model = micro_model(torch.float32)
    made = make_optimizer(model, TrainConfig(optimizer=optimizer))  # type: ignore[arg-type]
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    made.step()
    state = [value for each in made.state.values() for value in each.values() if value.dim()]
    planned = estimate(subject("quickstart", f"train.optimizer={optimizer}", shape=shaped(model)), CPU).needs.parts
    assert planned["optimizer"] == size(state)


def test_weights_in_four_bits_take_what_was_planned() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    weight = torch.randn(1024, 1024)
    packed, state = functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    assert size([packed, state.absmax, state.state2.absmax]) == NF4_BYTES * weight.numel()


@pytest.mark.parametrize("targets", [(), ("q_proj", "down_proj")])
def test_adapters_have_as_many_weights_as_planned(
    micro_model: Callable[..., PreTrainedModel], targets: tuple[str, ...]
) -> None:
    model = micro_model(torch.float32)
    Adapters(model, LoraConfig(rank=4, target_modules=targets), "")
    learned = [each for each in model.parameters() if each.requires_grad]
    chosen = f"train.lora={{rank: 4, target_modules: [{', '.join(targets)}]}}"
    planned = estimate(subject("quickstart", chosen, shape=shaped(micro_model())), CPU).needs.parts
    assert planned["gradients"] == size(learned)
    assert planned["weights"] == size(model.parameters())


@pytest.mark.parametrize(("most", "length", "budget"), [(8, 100, 1 << 22), (64, 300, 1 << 21), (4, 512, 1 << 26)])
def test_keys_and_values_take_what_was_planned(
    micro_model: Callable[..., PreTrainedModel], most: int, length: int, budget: int
) -> None:
    model = micro_model()
    cache = KvCache(EngineShape.of(model.config), torch.float32, torch.device("cpu"), max_num_seqs=most, budget=budget)
    cache.reserve(length)
    planned = key_value_cache(shaped(model), 4, most, budget, longest=length, mean=length, all_at_once=True)
    assert planned.bytes == size([cache.keys_LPKTD, cache.values_LPKTD])
    used = [cache.enter(cache.take(-(-length // 64))) for _ in range(planned.slots)]
    assert 0 < len(used) <= most
    assert len(used) == most or not cache.has(-(-length // 64))


def test_a_sequence_that_never_fits_is_foreseen(micro_model: Callable[..., PreTrainedModel]) -> None:
    planned = key_value_cache(shaped(micro_model()), 4, 8, 1000, longest=100, mean=10, all_at_once=True)
    assert planned.slots == 0


def test_the_engine_has_the_weights_that_were_planned(
    micro_model: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    model = micro_model(torch.float32)
    engine = TorchEngine(model, tokenizer, WeightVersions(torch.float32), max_num_seqs=4)
    planned = estimate(subject(shape=shaped(model)), CPU).needs.parts
    assert planned["engine weights"] == size(engine._scheduler.weights.values())
    packed = estimate(subject(shape=shaped(model)), replace(CPU, arm=True)).needs.parts
    linears = [each for name, each in engine._scheduler.weights.items() if "proj" in name]
    assert packed["engine weights"] - planned["engine weights"] == size(linears) + model.lm_head.weight.nbytes


@pytest.mark.parametrize("recompute", [False, 1, 2, 5, True])
def test_a_forward_pass_keeps_about_what_was_planned(make_group: Callable[..., Group], recompute: bool | int) -> None:
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": 6, "hidden_size": 128, "intermediate_size": 384})
    model = AutoModelForCausalLM.from_config(config).eval()
    learner = TorchTrainer(
        model,
        None,
        None,  # type: ignore[arg-type]
        GrpoConfig().make(max_tokens=300),
        WeightVersions(torch.float32),
        TrainConfig(max_tokens_per_microbatch=4000, gradient_checkpointing=recompute),
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
    one = activation_bytes(shaped(model), "single", narrow=False, adapted=False, gradient_checkpointing=recompute)
    if recompute is True:  # what is made again is not there yet
        one -= activation_bytes(
            replace(shaped(model), layers=1), "single", narrow=False, adapted=False, gradient_checkpointing=False
        )
        one += 3 * 4 * 128
    assert one * len(batch.token_N) == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("shape", "length", "micro", "recompute", "measured"),
    [  # MiB at the peak of an update of 512 samples, or of 8 long ones: docs/training.md
        (H200_SMOLLM2, 256, 14633, "false", 11_680),
        (H200_QWEN25, 256, 14624, "false", 23_339),
        (H200_SMOLLM2, 8192, 8703, "true", 3_723),
        (H200_QWEN25, 8192, 8703, "true", 9_954),
    ],
)
def test_updates_on_an_h200_took_about_the_memory_that_is_planned(
    shape: Shape, length: int, micro: int, recompute: str, measured: float
) -> None:
    settings = (
        f"train.max_tokens_per_microbatch={micro}",
        f"train.gradient_checkpointing={recompute}",
        f"rollout.max_tokens={length}",
    )
    prompt = 512 if length == 8192 else 48
    asked = subject("smollm2-code", *settings, shape=shape, prompt=prompt, longest_prompt=prompt - 1)
    found = estimate(asked, INSTANCES["h200"]).needs
    planned = sum(found.parts.get(name, 0) for name in TRAINER)
    assert planned / 2**20 == pytest.approx(measured, rel=0.08)


def peaks(*settings: str, instance: str = "h200", name: str = "smollm2-code") -> int:
    return estimate(subject(name, *settings), INSTANCES[instance]).needs.peak


@pytest.mark.parametrize("instance", ["h200", "g5.12xlarge", "p4de.24xlarge", "c7i.4xlarge"])
@pytest.mark.parametrize("name", ["smollm2-code", "gsm8k-qwen2.5-0.5b-qlora", "codefu-7b-stage1"])
def test_more_tokens_at_a_time_never_need_less(name: str, instance: str) -> None:
    fixed = "rollout.engine.kv_cache_gb=4"  # otherwise the KV cache gives way
    found = [
        peaks(fixed, f"train.max_tokens_per_microbatch={2**power}", instance=instance, name=name)
        for power in range(6, 20)
    ]
    assert found == sorted(found)


def test_more_of_anything_never_needs_less() -> None:
    for key, values in {
        "rollout.engine.kv_cache_gb": (1, 2, 40),
        "rollout.max_tokens": (64, 512, 4096),
        "rollout.engine.max_num_seqs": (1, 64, 512),
        "algo.kl_coef": (0, 0.1),
    }.items():
        found = [peaks(f"{key}={value}", "train.max_tokens_per_microbatch=16384") for value in values]
        assert found == sorted(found), key


def test_ranks_divide_what_is_spread() -> None:
    def parts(ranks: int) -> dict[str, int]:
        return dict(
            estimate(subject("codefu-7b-stage1", "runtime=local"), INSTANCES["p4de.24xlarge"], 1, ranks).needs.parts
        )

    four, eight = parts(4), parts(8)
    for name in ("weights", "gradients", "optimizer", "reference"):
        assert four[name] == pytest.approx(2 * eight[name], abs=2)
    assert four["weight store"] == eight["weight store"]  # the first rank has all of it


@pytest.mark.parametrize("tokens", [4096, 32768])
def test_an_engine_takes_half_of_what_updates_leave_free_on_a_gpu(tokens: int) -> None:
    asked = subject("smollm2-code", f"train.max_tokens_per_microbatch={tokens}")
    found = estimate(asked, INSTANCES["g6e.xlarge"])
    parts, cache = found.needs.parts, found.needs.cache
    free = found.capacity - sum(size for name, size in parts.items() if name not in ("KV cache", "engine work"))
    assert cache is not None
    assert free / 2 - 0.1 * GIB < cache.bytes <= free / 2


def test_two_models_take_the_memory_of_two() -> None:
    served = ("runtime=local", "rollout.engine=remote", "rollout.engine.url=[http://there:8000]")
    tester = ("tester.url=[http://there:8001]", "tester.engines=null", "tester.trainers=null")
    both = estimate(subject("code-qwen3-8b-coder-tester", *served, *tester), INSTANCES["p4de.24xlarge"]).needs.parts
    one = estimate(subject("code-qwen3-8b-m2po-full", *served), INSTANCES["p4de.24xlarge"]).needs.parts
    assert both["optimizer"] == pytest.approx(2 * one["optimizer"], abs=2)
    assert both["gathered"] == one["gathered"]  # one after the other


RAY = "runtime={name: ray, trainers: 4, engines: 2}"
SERVED = ("rollout.engine=remote", "rollout.engine.url=[http://there:8000]")


def test_on_a_ray_cluster_each_model_has_separate_devices() -> None:
    both = estimate(subject("code-qwen3-8b-coder-tester", RAY), INSTANCES["p4de.24xlarge"], 2)
    one = estimate(subject("code-qwen3-8b-m2po-full", RAY), INSTANCES["p4de.24xlarge"], 2)
    assert both.needs.parts["optimizer"] == one.needs.parts["optimizer"]
    assert both.layout.wanted == 2 * one.layout.wanted


def test_an_engine_on_a_ray_cluster_has_most_of_what_is_free_on_its_own_gpu() -> None:
    beside = estimate(subject("smollm2-code"), INSTANCES["p4de.24xlarge"], 1, 1)
    apart = estimate(subject("smollm2-code", RAY), INSTANCES["p4de.24xlarge"])
    assert apart.engine is not None
    assert beside.engine is None
    parts, cache = apart.engine.parts, apart.engine.cache
    free = apart.capacity - parts["process"] - parts["engine weights"]
    assert cache is not None
    assert 0.85 * free - 0.1 * GIB < cache.bytes <= 0.85 * free
    assert parts["engine weights"] == beside.needs.parts["engine weights"]
    assert apart.cache == cache
    assert apart.peak == max(apart.needs.peak, apart.engine.peak)


def test_engines_that_share_a_gpu_on_a_ray_cluster_take_a_third_each() -> None:
    shared = estimate(subject("smollm2-code", RAY.replace("}", ", gpus: 0.5}")), INSTANCES["p4de.24xlarge"])
    assert shared.engine is not None
    assert shared.engine.cache is not None
    free = shared.capacity - shared.engine.parts["process"] - shared.engine.parts["engine weights"]
    assert free / 3 - 0.1 * GIB < shared.engine.cache.bytes <= free / 3


VLLM = ["rollout.engine=vllm"]


def test_vllm_alone_on_its_gpu_takes_nine_tenths_of_it() -> None:
    found = estimate(subject("codefu-7b-stage1", RAY, *VLLM), INSTANCES["p4de.24xlarge"])
    assert found.engine is not None
    assert 0.9 * found.capacity - 3 * GIB < found.engine.peak <= 0.9 * found.capacity


def test_tensor_parallel_workers_divide_weights_and_kv_cache() -> None:
    def engine(size: int) -> Estimate:
        own = [*VLLM, f"rollout.engine.tensor_parallel_size={size}", "rollout.engine.kv_cache_gb=4"]
        return estimate(subject("code-qwen3-8b-m2po-full", RAY, *own), INSTANCES["p4de.24xlarge"])

    one, two = engine(1), engine(2)
    assert one.engine is not None
    assert two.engine is not None
    assert one.layout.wanted == 4 + 2
    assert two.layout.wanted == 4 + 2 * 2
    assert two.engine.parts["engine weights"] == one.engine.parts["engine weights"] // 2
    assert two.engine.parts["KV cache"] <= 4 * GIB  # on each of the two GPUs, and so twice as many sequences
    assert two.cache is not None
    assert one.cache is not None
    assert two.cache.slots == pytest.approx(2 * one.cache.slots, abs=1)
    assert two.times.generate < one.times.generate


def test_the_tester_s_own_numbers_of_processes_count() -> None:
    own = ["tester.engines=1", "tester.trainers=2", "rollout.engine=torch", "tester.url=[]"]
    asked = subject("code-qwen3-8b-coder-tester", RAY, *own)
    found = estimate(asked, INSTANCES["p4de.24xlarge"], 2)
    assert found.layout.wanted == (4 + 2) + (2 + 1)
    assert (found.layout.of("coder").ranks, found.layout.of("coder").servers) == (4, 2)
    assert (found.layout.of("tester").ranks, found.layout.of("tester").servers) == (2, 1)
    # Half as many trainers hold twice as much of the tester each: that is what has to fit.
    assert found.needs.parts["gradients"] == 4 * asked.shapes["tester"].parameters // 2


def test_roles_on_a_ray_cluster_update_at_the_same_time() -> None:
    recipe, own = "code-qwen3-8b-coder-tester", [RAY, *VLLM]
    alone = ["workflow={name: single_turn}", "tester=null"]
    one = estimate(subject(recipe, *own, *alone), INSTANCES["p4de.24xlarge"], 2).times
    both = estimate(subject(recipe, *own, "tester.url=[]"), INSTANCES["p4de.24xlarge"], 2).times
    assert both.publish == one.publish


def test_processes_on_cpus_share_the_memory_of_their_machine() -> None:
    asked = subject("quickstart", "runtime={name: ray, trainers: 2, engines: 3}", "model.device=cpu")
    found = estimate(asked, CPU)
    assert found.engine is not None
    assert found.peak == 2 * found.needs.peak + 3 * found.engine.peak
    served = subject("code-qwen3-8b-m2po-full", *SERVED, "runtime={name: ray, trainers: 8}", "model.device=cpu")
    alone = estimate(served, INSTANCES["c7i.48xlarge"])
    assert alone.engine is None
    assert alone.peak == 8 * alone.needs.peak
    assert alone.fit == "no"


def test_trainers_are_packed_onto_few_machines() -> None:
    asked = subject("code-qwen3-8b-m2po-full", "runtime={name: ray, trainers: 8}")
    one, two = (estimate(asked, INSTANCES["p4de.24xlarge"], nodes) for nodes in (1, 2))
    assert one.host == two.host
    assert one.times.update == two.times.update


def test_without_a_gpu_the_machine_s_gpus_count_for_nothing() -> None:
    for settings in (["model.device=cpu"], ["runtime={name: ray, gpus: 0}"]):
        found = estimate(subject("quickstart", *settings), INSTANCES["g5.xlarge"])
        assert found.layout.gpu is None
        assert found.capacity == 16 * GIB
        assert found.layout.usd == INSTANCES["g5.xlarge"].usd


def test_a_critic_is_a_whole_model() -> None:
    without: Estimate = estimate(subject("smollm2-gsm8k"), INSTANCES["h200"])
    beside = estimate(subject("smollm2-gsm8k", "algo.name=ppo"), INSTANCES["h200"])
    assert "critic" not in without.needs.parts
    assert beside.needs.parts["critic"] == 16 * MODELS["smollm2-135m-instruct"].parameters

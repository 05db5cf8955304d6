"""What the trainer does on a GPU: one attention kernel for all samples, and memory given back."""

import asyncio
import gc
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.grpo import GrpoConfig
from dojang.algos.m2po import M2poConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.flash_attention import VarlenAttention
from dojang.trainer.logprobs import target_logprobs
from dojang.trainer.packed_attention import PaddedAttention, Segment
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.trainer.update_memory import memory_metrics
from dojang.types import Group, Problem, Sample
from dojang.weight_sync.versions import WeightVersions

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

GPU = torch.device("cuda")
SEGMENTS = (
    Segment(0, 37, None),
    Segment(37, 5, 0),
    Segment(42, 130, 0),
    Segment(172, 1, 0),
    Segment(173, 64, None),
    Segment(237, 90, None),
    Segment(327, 70, 5),
)


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(9, 3, 64), (4, 4, 32), (14, 2, 64), (8, 1, 128)])
def test_one_kernel_sees_what_blocks_see(heads: int, kv_heads: int, size: int) -> None:
    draw = torch.Generator(GPU).manual_seed(0)
    shapes = [(397, heads, size), (397, kv_heads, size), (397, kv_heads, size)]
    inputs = [torch.randn(shape, device=GPU, generator=draw).bfloat16().float() for shape in shapes]
    weight = torch.randn(shapes[0], device=GPU, generator=draw)

    def play(plan: PaddedAttention | VarlenAttention, dtype: torch.dtype) -> list[Tensor]:
        mine = [each.to(dtype).requires_grad_() for each in inputs]
        seen = plan.attend(*mine, size**-0.5)
        (seen.float() * weight).sum().backward()  # type: ignore[no-untyped-call]
        return [seen.detach().float(), *(each.grad.float() for each in mine if each.grad is not None)]

    expected = play(PaddedAttention(SEGMENTS, GPU), torch.float64)
    found = play(VarlenAttention(SEGMENTS, GPU), torch.bfloat16)
    for mine, theirs in zip(found, expected, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 0.01


def model(seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def groups(make_sample: Callable[..., Sample], problem: Problem) -> list[Group]:
    random = Random(0)
    made = []
    for prompt_index in range(4):
        prompt = [random.randrange(5, 500) for _ in range(20)]
        answers = [[random.randrange(5, 500) for _ in range(random.randint(1, 90))] for _ in range(6)]
        samples = [
            make_sample(prompt=prompt, answer=each, logprobs=[-6.2] * len(each), advantage=(-1.0) ** place)
            for place, each in enumerate(answers)
        ]
        made.append(Group(problem, prompt_index, tuple(samples)))
    return made


def make(
    tokenizer: PreTrainedTokenizerBase, device: torch.device, compute: torch.dtype, **settings: Any
) -> TorchTrainer:
    algo = settings.pop("algo", GrpoConfig(kl_coef=0.1))
    return TorchTrainer(
        model().to(device),
        model(1).to(compute).to("cpu" if settings.get("offload") else device) if algo.kl_coef else None,
        tokenizer,
        algo.make(max_tokens=90),
        WeightVersions(compute),
        TrainConfig(**{"lr": 1e-3, "max_tokens_per_microbatch": 700, **settings}),
        total_updates=10,
        max_tokens=90,
        temperature=1.0,
        compute=compute,
    )


def steps(trainer: TorchTrainer, groups: list[Group]) -> list[dict[str, float]]:
    async def both() -> dict[str, float]:
        return {**await trainer.forward_backward(groups), **await trainer.optim_step()}

    return [asyncio.run(both()) for _ in range(3)]


FIGURES = ("actor/loss", "actor/grad_norm", "actor/entropy", "actor/ppo_kl")
ROUNDING = {torch.float32: 1e-3, torch.bfloat16: 0.05}
"""How far they may be apart after three steps where the same is computed in another way."""


@pytest.mark.parametrize("algo", [GrpoConfig(kl_coef=0.1), M2poConfig()], ids=["grpo", "m2po"])
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_a_gpu_learns_what_a_processor_learns(
    tokenizer: PreTrainedTokenizerBase, groups: list[Group], compute: torch.dtype, algo: Any
) -> None:
    expected = steps(make(tokenizer, torch.device("cpu"), torch.float32, algo=algo), groups)
    found = steps(make(tokenizer, GPU, compute, algo=algo), groups)
    rel = ROUNDING[compute]
    for mine, theirs in zip(found, expected, strict=True):
        for name in FIGURES:
            assert mine[name] == pytest.approx(theirs[name], rel=rel, abs=rel / 50), name


@pytest.mark.parametrize(
    "settings", [{"offload": ("optimizer", "reference")}, {"gradient_checkpointing": True}], ids=str
)
def test_memory_saving_settings_do_not_change_updates(
    tokenizer: PreTrainedTokenizerBase, groups: list[Group], settings: dict[str, Any]
) -> None:
    expected = steps(make(tokenizer, GPU, torch.bfloat16), groups)
    found = steps(make(tokenizer, GPU, torch.bfloat16, **settings), groups)
    for mine, theirs in zip(found, expected, strict=True):
        for name in FIGURES:
            assert mine[name] == pytest.approx(theirs[name], rel=0.02, abs=1e-3), name


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # torch.compile's own, as it is loaded
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # and as it traces
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")  # not wanted: they are less precise
@pytest.mark.parametrize("compute", [torch.float32, torch.bfloat16])
def test_compiled_it_learns_the_same(
    tokenizer: PreTrainedTokenizerBase, groups: list[Group], compute: torch.dtype
) -> None:
    expected = steps(make(tokenizer, GPU, compute), groups)
    found = steps(make(tokenizer, GPU, compute, compile=True), groups)
    rel = ROUNDING[compute]  # it rounds in other places
    for mine, theirs in zip(found, expected, strict=True):
        for name in FIGURES:
            assert mine[name] == pytest.approx(theirs[name], rel=rel, abs=rel / 50), name


def test_offloaded_state_takes_no_gpu_memory(tokenizer: PreTrainedTokenizerBase, groups: list[Group]) -> None:
    held = {}
    steps(make(tokenizer, GPU, torch.bfloat16), groups)  # the workspace of matrix products stays allocated
    for offload in ((), ("optimizer", "reference")):
        gc.collect()  # the trainer before has cycles
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        trainer = make(tokenizer, GPU, torch.bfloat16, offload=offload)
        steps(trainer, groups)
        held[bool(offload)] = torch.cuda.memory_allocated() - before
        weights = sum(each.numel() for each in trainer._model.parameters())
        del trainer
    saved = held[False] - held[True]
    assert saved == pytest.approx(weights * (4 + 4 + 2), rel=0.05)  # two moments, and a half-precision model


def test_a_float32_head_does_not_round_scores_on_a_gpu() -> None:
    draw = torch.Generator(GPU).manual_seed(0)
    x, head = (torch.randn(size, 256, device=GPU, generator=draw).bfloat16() for size in (300, 5000))
    target = torch.arange(300, device=GPU)
    exact = (x.double() @ head.double().T).log_softmax(-1).gather(-1, target[:, None]).squeeze(-1)
    rounded, _ = target_logprobs(x, head, target, 1.0)
    wide, _ = target_logprobs(x.requires_grad_(), head, target, 1.0, float32_head=True)
    assert (wide - exact).abs().max() < 1e-3 < 1e-2 < (rounded - exact).abs().mean()
    wide.sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"offload": ("optimizer", "reference")}])
def test_reserved_memory_suffices_for_updates(
    tokenizer: PreTrainedTokenizerBase, groups: list[Group], settings: dict[str, Any]
) -> None:
    steps(make(tokenizer, GPU, torch.bfloat16), groups)  # the workspace of matrix products stays allocated
    gc.collect()
    trainer = make(tokenizer, GPU, torch.bfloat16, **settings)
    reserved = trainer.reserved_bytes(trainer.measure_passes(), versions=2)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    steps(trainer, groups)
    for version in (1, 2):
        asyncio.run(trainer.publish(version))
    used = torch.cuda.max_memory_allocated() - before
    told = memory_metrics(GPU)
    assert told["perf/max_memory_allocated_gb"] == (before + used) / 1e9 <= told["perf/max_memory_reserved_gb"]
    assert used <= 1.05 * reserved
    assert used > 0.6 * reserved
    weights = sum(each.numel() for each in trainer._model.parameters())
    after = trainer.reserved_bytes(0, versions=0)
    assert after == (4 * weights if "offload" in settings else 0)  # the optimizer state is there

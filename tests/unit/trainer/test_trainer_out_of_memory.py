"""A trainer whose layers run out of memory says so, with the remedies."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.algos.ppo import PpoConfig
from dojang.core.errors import OutOfMemory
from dojang.trainer.config import TrainConfig
from dojang.trainer.critic import Critic
from dojang.trainer.teacher_model import Teacher
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group
from dojang.weight_sync.versions import WeightVersions

F64 = torch.float64
TOLD = "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 139.80 GiB."
REMEDY = "set train.gradient_checkpointing=true, lower train.max_tokens_per_microbatch"


FIVE = (0.0,) * 5
"""Of each token of a sample."""


def scarce(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError(TOLD)


@pytest.fixture
def parts(micro_model: Callable[..., PreTrainedModel]) -> dict[str, PreTrainedModel]:
    return {name: micro_model(F64, seed=at) for at, name in enumerate(("policy", "reference", "teacher", "critic"))}


@pytest.fixture
def trainer(parts: dict[str, PreTrainedModel], tokenizer: PreTrainedTokenizerBase) -> TorchTrainer:
    config = TrainConfig(lr=1e-2)
    algorithm = PpoConfig(kl_coef=0.1).make(max_tokens=9)
    return TorchTrainer(
        parts["policy"],
        parts["reference"],
        tokenizer,
        algorithm,
        WeightVersions(F64),
        config,
        total_updates=10,
        max_tokens=9,
        temperature=1.0,
        compute=F64,
        critic=Critic(parts["critic"], algorithm, config, compute=F64),
        teacher=Teacher(parts["teacher"], temperature=1.0, compute=F64),
    )


@pytest.mark.parametrize(
    ("method", "model", "what"),
    [
        ("forward_backward", "policy", "an update"),
        ("score", "policy", "the log-probs of samples"),
        ("ref_logprobs", "reference", "the reference model's log-probs"),
        ("teacher_logprobs", "teacher", "the teacher's log-probs"),
        ("compute_values", "critic", "the critic's values"),
    ],
)
def test_a_layer_runs_out_of_memory(
    trainer: TorchTrainer,
    parts: dict[str, PreTrainedModel],
    make_group: Callable[..., Group],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    model: str,
    what: str,
) -> None:
    group = make_group((0.0, 1.0), advantage=1.0, values=FIVE, returns=FIVE)
    layer = next(each for each in parts[model].modules() if isinstance(each, torch.nn.Linear))
    monkeypatch.setattr(layer, "forward", scarce)
    with pytest.raises(OutOfMemory) as caught:
        asyncio.run(getattr(trainer, method)([group] if method == "forward_backward" else group.samples))
    assert str(caught.value).startswith(f"the GPU has too little memory for {what}: {REMEDY}")
    assert str(caught.value).endswith("(CUDA out of memory. Tried to allocate 256.00 MiB)")


def test_the_backward_pass_runs_out_of_memory(trainer: TorchTrainer, make_group: Callable[..., Group]) -> None:
    class Scarce(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, grad: torch.Tensor) -> None:
            scarce()

    layer = trainer._model.get_submodule("model.layers.0")
    layer.register_forward_hook(lambda module, inputs, output: Scarce.apply(output))
    with pytest.raises(OutOfMemory, match="too little memory for an update"):
        asyncio.run(trainer.forward_backward([make_group((0.0, 1.0), advantage=1.0, values=FIVE, returns=FIVE)]))


def test_the_optimizer_step_runs_out_of_memory(trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer._optimizer, "step", scarce)  # its first one allocates the state
    with pytest.raises(OutOfMemory, match="too little memory for the optimizer step"):
        asyncio.run(trainer.optim_step())


def test_publishing_runs_out_of_memory(trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer._weights, "publish", scarce)
    with pytest.raises(OutOfMemory, match="too little memory for publishing the weights"):
        asyncio.run(trainer.publish(1))


def test_a_checkpoint_that_does_not_fit_is_not_called_damaged(
    trainer: TorchTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(trainer.save(tmp_path))
    monkeypatch.setattr("dojang.trainer.checkpoint.load_optimizer", scarce)
    with pytest.raises(OutOfMemory, match="too little memory for restoring a checkpoint"):
        asyncio.run(trainer.restore(tmp_path))


def test_other_errors_are_left_as_they_are(trainer: TorchTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(trainer._weights, "publish", broken)
    with pytest.raises(RuntimeError, match=r"^shapes differ$"):
        asyncio.run(trainer.publish(1))

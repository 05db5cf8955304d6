"""Which optimizer steps a batch of rollouts is turned into, seen from a trainer that only takes notes."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dojang.algos.grpo import GrpoConfig
from dojang.algos.gspo import GspoConfig
from dojang.loop.truncation_mask import mask_truncated
from dojang.loop.update import update
from dojang.types import Group, Metrics, Problem, Sample


class Notes:
    """A trainer that writes down what it is asked."""

    def __init__(self) -> None:
        self.asked = list[str]()
        self.seen = list[list[Sample]]()

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        self.asked.append("".join(str(group.prompt_index) for group in groups))
        self.seen.append([sample for group in groups for sample in group.samples])
        return {"actor/loss": float(len(self.asked))}

    async def optim_step(self) -> Metrics:
        return {"actor/lr": 1.0}

    async def skip_steps(self, count: int) -> None:
        self.asked.append(f"skip {count}")

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        self.asked.append("score")
        return [(-1.0,) * len(sample.tokens) for sample in samples]


@pytest.fixture
def groups(make_sample: Callable[..., Sample], problem: Problem) -> list[Group]:
    def group(prompt_index: int) -> Group:
        pair = (make_sample(prompt=[1, 2], answer=[3, 4], advantage=value) for value in (1.0, -1.0))
        return Group(problem, prompt_index, tuple(pair))

    return [group(prompt_index) for prompt_index in range(4)]


def learned(groups: Sequence[Group], **settings: Any) -> tuple[Notes, Metrics]:
    trainer = Notes()
    algorithm = settings.pop("algo", GrpoConfig()).make(9)
    defaults = {"minibatches": 1, "ppo_epochs": 1, "mask_truncated": False, "critic": False, "warned": set()}
    run: Any = SimpleNamespace(trainer=trainer, algorithm=algorithm, **{**defaults, **settings})
    return trainer, asyncio.run(update(run, groups))


def cut(group: Group, *places: int) -> Group:
    """The same group with these samples cut off at max_tokens."""
    samples = (replace(each, finish="length") if at in places else each for at, each in enumerate(group.samples))
    return replace(group, samples=tuple(samples))


def test_each_epoch_takes_all_parts_in_the_same_order(groups: list[Group]) -> None:
    trainer, metrics = learned(groups, minibatches=2, ppo_epochs=3)
    assert trainer.asked == ["01", "23"] * 3
    assert metrics == {"actor/loss": 3.5, "actor/lr": 1.0}  # means over the optimizer steps


def test_old_log_probs_are_computed_once_before_the_first_epoch(groups: list[Group]) -> None:
    trainer, _ = learned(groups, ppo_epochs=2, algo=GspoConfig())
    assert trainer.asked == ["score", "0123", "0123"]
    assert all(sample.old_logprobs.tolist() == [-1.0] * 4 for seen in trainer.seen for sample in seen)


def test_truncated_completions_are_masked_and_keep_their_advantages(groups: list[Group]) -> None:
    trainer, _ = learned([cut(groups[0], 1), *groups[1:]], mask_truncated=True)
    assert [any(sample.mask) for sample in trainer.seen[0]] == [True, False, *[True] * 6]
    assert [sample.advantage for sample in trainer.seen[0]] == [1.0, -1.0] * 4
    trainer, _ = learned([cut(groups[0], 1), *groups[1:]])
    assert all(any(sample.mask) for sample in trainer.seen[0])


def test_groups_of_truncated_completions_alone_are_not_trained_on(groups: list[Group]) -> None:
    trainer, _ = learned([cut(groups[0], 0, 1), *groups[1:]], mask_truncated=True)
    assert "".join(trainer.asked) in ("123", "1230")  # at most counted, and without a token
    everything = [cut(group, 0, 1) for group in groups]
    trainer, metrics = learned(everything, mask_truncated=True)
    assert [asked for asked in trainer.asked if not asked.startswith("skip")] == []
    assert metrics == {}
    assert mask_truncated(everything)[0].samples[0].advantage == 1.0


def test_a_batch_of_truncated_completions_alone_is_warned_of_once(
    groups: list[Group], caplog: pytest.LogCaptureFixture
) -> None:
    warned: set[str] = set()
    some, everything = [cut(groups[0], 0, 1), *groups[1:]], [cut(group, 0, 1) for group in groups]
    learned(some, mask_truncated=True, warned=warned)
    learned(everything, warned=warned)
    assert caplog.messages == []
    for _ in range(2):
        learned(everything, mask_truncated=True, warned=warned)
    assert [each[:33] for each in caplog.messages] == ["all 8 completions of a batch were"]

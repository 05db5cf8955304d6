"""Reward functions written for TRL and for veRL."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from dojang.core.errors import ConfigError
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.reward_settings import FunctionReward
from dojang.tasks.rewards import RewardFailure, Score, WeightedRewards
from dojang.types import Message, Outcome, Problem

PROBLEM = Problem("sums/1", "sums", (Message("system", "Be brief."), Message("user", "9 * 2?")), "18", "easy")


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `verifiers` to put functions into."""
    module = ModuleType("verifiers")
    monkeypatch.setitem(sys.modules, "verifiers", module)
    return module


def score(module: ModuleType, function: object, kind: float | FunctionReward = 2.0, text: str = "It is 18.") -> Score:
    module.one = function  # type: ignore[attr-defined]
    return asyncio.run(WeightedRewards({"verifiers:one": kind}, timeout_s=5).score(PROBLEM, text))


def test_trl_signature(module: ModuleType) -> None:
    seen: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, solution: Any, **columns: Any) -> list[float]:
        seen.update(columns, prompts=prompts, completions=completions, solution=solution)
        return [0.5]

    assert score(module, reward) == Score(1.0, {"one": 0.5}, {"one": (2.0, 0.5)})
    assert seen == {
        "prompts": [[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "9 * 2?"}]],
        "completions": [[{"role": "assistant", "content": "It is 18."}]],
        "solution": ["18"],
        "answer": ["18"],
        "ground_truth": ["18"],
        "reference": ["18"],
        "data_source": ["sums"],
        "id": ["sums/1"],
        "tier": ["easy"],
        "reward_model": [{"style": "rule", "ground_truth": "18"}],
        "extra_info": [{"id": "sums/1", "tier": "easy"}],
    }


def test_trl_function_gets_only_its_parameters_and_its_form(module: ModuleType) -> None:
    def plain(completions: list[str], answer: list[str], log_extra: Any = None) -> list[float]:
        assert log_extra is None
        return [float(right in text) for right, text in zip(answer, completions, strict=True)]

    assert score(module, plain, FunctionReward(weight=3.0, completions="text")) == Score(
        3.0, {"one": 1.0}, {"one": (3.0, 1.0)}
    )
    with pytest.raises(RewardFailure, match="reward 'one' returned 'no', not a finite number"):
        score(module, lambda completions: ["no"])


def test_keyword_arguments_alone_are_trl_s_signature(module: ModuleType) -> None:
    def all_of_them(**kwargs: Any) -> list[float]:
        (answer,), (completion,) = kwargs["answer"], kwargs["completions"]
        return [float(answer in completion[0]["content"])]

    def a_column(answer: list[str], scale: float = 0.5, **kwargs: Any) -> list[float]:
        (completion,) = kwargs["completions"]
        return [scale * float(right in completion[0]["content"]) for right in answer]

    assert score(module, all_of_them).parts == {"one": 1.0}
    assert score(module, a_column).parts == {"one": 0.5}
    assert score(module, lambda problem, text, **rest: float(problem.reference in text)).parts == {"one": 1.0}
    assert score(module, lambda *both, **rest: float(both[0].reference in both[1])).parts == {"one": 1.0}
    with pytest.raises(ConfigError, match=r"takes \(unknown, \*\*rest\)"):
        score(module, lambda unknown, **rest: [1.0])


async def _slow_trl(completions: Any, **columns: Any) -> list[float | None]:
    await asyncio.sleep(0)
    return [0.25]


async def _slow_verl(solution_str: str, ground_truth: str) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"score": float(ground_truth in solution_str)}


@pytest.mark.parametrize(("function", "value"), [(_slow_trl, 0.25), (_slow_verl, 1.0)])
def test_async_functions(module: ModuleType, function: object, value: float) -> None:
    assert score(module, function).parts == {"one": value}


def test_verl_signature(module: ModuleType) -> None:
    seen: list[Any] = []

    def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        seen.append((data_source, solution_str, ground_truth, extra_info))
        return 0.5

    assert score(module, compute_score) == Score(1.0, {"one": 0.5}, {"one": (2.0, 0.5)})
    assert seen == [("sums", "It is 18.", "18", {"id": "sums/1", "tier": "easy"})]
    assert score(module, lambda solution_str, **rest: {"score": 1, "acc": len(rest)}).parts == {"one": 1.0}


def test_none_of_a_trl_function_means_not_applicable(module: ModuleType) -> None:
    module.skip = lambda completions: [None]  # type: ignore[attr-defined]
    rewards = WeightedRewards({"verifiers:skip": 1.0, "correct": 1.0}, timeout_s=5)
    assert asyncio.run(rewards.score(PROBLEM, "#### 18")) == Score(1.0, {"correct": 1.0}, {"correct": (1.0, 1.0)})
    alone = AnswerLineConfig(rewards={"verifiers:skip": 1.0}).make({})
    verdict = asyncio.run(alone.grade(PROBLEM, "#### 18"))
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert verdict.detail == "sums/1: no reward function applies to it"


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda completions: 1.0, "returned 1.0, not a list of one number"),
        (lambda completions: [], r"returned \[\], not a list of one number"),
        (lambda completions: [1.0, 2.0], r"returned \[1.0, 2.0\], not a list of one number"),
        (lambda completions: {"score": 1.0}, "not a list of one number"),
        (lambda completions: [float("nan")], "returned nan, not a finite number"),
        (lambda completions: 1 / 0, "raised ZeroDivisionError"),
        (lambda solution_str: {"acc": 1.0}, "returned a mapping without `score`"),
        (lambda solution_str: None, "returned None, not a finite number"),
        (lambda solution_str: [1.0], "not a finite number"),
    ],
)
def test_invalid_result_is_a_failure(module: ModuleType, function: object, said: str) -> None:
    with pytest.raises(RewardFailure, match=said):
        score(module, function)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            lambda completions, solution_str: 1.0,
            "`completions` is how TRL calls a function and `solution_str` how veRL",
        ),
        (
            lambda completions, difficulty: 1.0,
            "TRL's signature .* no value is available for difficulty; available: completions, ",
        ),
        (lambda completions, completion_ids: 1.0, "no value is available for completion_ids"),
        (lambda solution_str, tokenizer: 1.0, "veRL's signature .* no value is available for tokenizer"),
        (lambda text: 1.0, "TRL's signature \\(completions, \\*\\*columns\\) or veRL's"),
        (lambda unknown, **columns: 1.0, "is called with \\(problem, text\\)"),
    ],
)
def test_unsupported_signature_is_refused(module: ModuleType, function: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        score(module, function)

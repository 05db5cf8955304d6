"""What a recipe may say of a reward."""

import asyncio
import sys
import time
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from dojang.config.recipe import load, to_yaml
from dojang.core.errors import ConfigError
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.code import CodeConfig
from dojang.tasks.maths import MathsConfig
from dojang.tasks.reward_settings import LengthReward
from dojang.types import Message, Outcome, Problem, Verdict

PROBLEM = Problem("p/1", "p", (Message("user", "What is 9 * 2?"),), "18")
RUNAWAY = "(a|aa)+$"


def grade(config: Any, text: str, problem: Problem = PROBLEM) -> Verdict:
    verdict: Verdict = asyncio.run(config.make({}).grade(problem, text))
    return verdict


@pytest.mark.parametrize(
    ("settings", "words", "value"),
    [
        ({"at_most": 10}, 0, 1.0),
        ({"at_most": 10}, 10, 1.0),
        ({"at_most": 10}, 15, 0.5),
        ({"at_most": 10}, 20, 0.0),
        ({"at_most": 10}, 99, 0.0),
        ({"at_most": 10, "fade": 4}, 11, 0.75),
        ({"at_most": 10, "fade": 4}, 14, 0.0),
        ({"at_most": 10, "fade": 0}, 11, 0.0),
        ({"at_least": 10}, 10, 1.0),
        ({"at_least": 10}, 999, 1.0),
        ({"at_least": 10}, 4, 0.4),
        ({"at_least": 10, "fade": 2}, 9, 0.5),
        ({"at_least": 10, "fade": 2}, 4, 0.0),
        ({"at_least": 4, "at_most": 8}, 6, 1.0),
        ({"at_least": 4, "at_most": 8}, 2, 0.5),
        ({"at_least": 4, "at_most": 8}, 12, 0.5),
        ({"at_least": 4, "at_most": 4, "fade": 0}, 4, 1.0),
    ],
)
def test_length_is_rewarded_within_bounds_and_fades_beyond(settings: dict[str, Any], words: int, value: float) -> None:
    assert LengthReward.model_validate(settings).value("word " * words) == pytest.approx(value)
    characters = LengthReward.model_validate({**settings, "unit": "characters"})
    assert characters.value("x" * words) == pytest.approx(value)


def test_sections_and_weights() -> None:
    config = AnswerLineConfig.model_validate(
        {
            "rewards": {
                "correct": 1.0,
                "brevity": {"weight": 0.2, "at_most": 4},
                "tags": {"weight": 0.5, "pattern": r"(?s)\A<think>.*</think>"},
            }
        }
    )
    verdict = grade(config, "<think>\nso\n</think>\n#### 18")
    assert verdict.parts == {"correct": 1.0, "brevity": 0.75, "tags": 1.0}
    assert verdict.reward == pytest.approx(1.0 + 0.2 * 0.75 + 0.5)
    assert grade(config, "#### 18").parts == {"correct": 1.0, "brevity": 1.0, "tags": 0.0}


def test_custom_pattern_replaces_the_format() -> None:
    config = AnswerLineConfig.model_validate({"rewards": {"correct": 1, "format": {"weight": 0.5, "pattern": "^So"}}})
    assert grade(config, "#### The final answer is 18").parts == {"correct": 1.0, "format": 0.0}
    assert grade(config, "So\n#### 18").reward == 1.5


def test_slow_pattern_is_a_judge_error() -> None:
    config = AnswerLineConfig.model_validate({"timeout_s": 0.3, "rewards": {"odd": {"pattern": RUNAWAY}}})
    ticks = 0

    async def both() -> Verdict:
        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        verdict = await config.make({}).grade(PROBLEM, "a" * 100 + "b")
        ticking.cancel()
        return verdict

    started = time.monotonic()
    verdict = asyncio.run(both())
    assert time.monotonic() - started < 5
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert "reward 'odd'" in verdict.detail
    assert ticks >= 5  # the loop went on


@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        ({"tags": {"pattern": "("}}, r"tags: pattern: '\(' is not a regular expression"),
        ({"tags": {"pattern": ""}}, "tags: pattern: String should have at least 1 character"),
        ({"length": {"at_most": 0}}, "length: at_most: "),
        ({"length": {"at_least": 5, "at_most": 4}}, "length: at_most=4 is less than at_least=5"),
        ({"length": {"at_most": 4, "unit": "lines"}}, "length: unit: "),
        ({"length": {"at_most": 4, "wieght": 1}}, "length: wieght: "),
        ({"length": {"weight": 1}}, "length: a section needs a `pattern`, or `at_least` or `at_most`"),
        ({"correct": {"weight": 1}}, "any other reward is a weight alone"),
        ({"length": 1.0}, "unknown reward 'length'"),
        ({"a b": {"at_most": 4}}, "'a b' is not a valid name"),
        ({"mine:f": {"pattern": "x"}}, "mine:f: pattern: "),
        ({"length": {"at_most": 4, "weight": float("inf")}}, "length: weight: "),
        ({"correct": [1]}, "correct: Input should be a valid number"),
    ],
)
def test_invalid_sections_are_named(rewards: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        AnswerLineConfig.model_validate({"rewards": rewards})


def test_sections_round_trip(tmp_path: Any) -> None:
    overrides = ["task.rewards={correct: 1, length: {weight: 0.2, at_most: 50}, 'json:loads': {completions: text}}"]
    config = load("quickstart", overrides)
    (tmp_path / "again.yaml").write_text(to_yaml(config))
    assert load(str(tmp_path / "again.yaml")) == config


def test_recipe_error_names_the_key() -> None:
    with pytest.raises(ConfigError, match=r"task.rewards: length: at_most: "):
        load("quickstart", ["task.rewards={length: {at_most: -1}}"])
    with pytest.raises(
        ConfigError, match=r"algo.reward_weights has a weight for size, but the parts .* are correct, f;"
    ):
        load(
            "quickstart", ["algo.name=gdpo", "algo.reward_weights={size: 2}", "task.rewards={correct: 1, 'mine:f': 1}"]
        )
    assert load(
        "quickstart", ["algo.name=gdpo", "algo.reward_weights={f: 2}", "task.rewards={correct: 1, 'mine:f': 1}"]
    )


# ---- on top of what a task pays ---------------------------------------------------------------------------------


def test_maths_with_additional_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    module = ModuleType("verifiers")
    monkeypatch.setitem(sys.modules, "verifiers", module)
    module.polite = lambda problem, text: "please" in text  # type: ignore[attr-defined]
    config = MathsConfig.model_validate(
        {"timeout_s": 20, "rewards": {"length": {"weight": 0.5, "at_most": 4}, "verifiers:polite": 0.25}}
    )
    verdict = grade(config, r"please \boxed{18}")
    assert verdict.parts == {"correct": 1.0, "boxed": 1.0, "length": 1.0, "polite": 1.0}
    assert (verdict.outcome, verdict.reward) == (Outcome.ACCEPTED, 1.75)
    assert grade(config, "no idea what it could be at all, not any").reward == 0.0
    module.polite = lambda problem, text: None  # type: ignore[attr-defined]
    failed = grade(config, r"\boxed{18}")
    assert (failed.outcome, failed.reward) == (Outcome.JUDGE_ERROR, None)
    assert failed.detail == "p/1: reward 'polite' returned None, not a finite number"


@pytest.mark.parametrize(
    ("config", "rewards", "said"),
    [
        (MathsConfig, {"boxed": {"pattern": "x"}}, "'boxed' has the name of the task's part"),
        (MathsConfig, {"mine:correct": 1.0}, "'mine:correct' has the name of the task's part 'correct'"),
        (MathsConfig, {"correct": 1.0}, "unknown reward 'correct': it is not of the form package.module:function"),
        (CodeConfig, {"fraction": {"at_most": 5}}, "task's part 'fraction'"),
        (CodeConfig, {"format": 1.0}, "unknown reward 'format'"),
    ],
)
def test_names_of_task_parts_are_refused(config: Any, rewards: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        config.model_validate({"rewards": rewards})

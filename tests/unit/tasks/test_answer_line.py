import asyncio
import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import ValidationError

from dojang.core.errors import ConfigError, DataError
from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.gsm8k import STOP, Gsm8kConfig
from dojang.protocols import Task
from dojang.tasks.answer_line import AnswerLineConfig, AnswerLineTask
from dojang.tasks.answers import NEXT_QUESTION, read_number
from dojang.types import Message, Outcome, Problem, Verdict

PROBLEM = Problem("p/1", "p", (Message("user", "What is 9 * 2?"),), "18")


def grade(text: str, config: AnswerLineConfig | None = None, problem: Problem = PROBLEM) -> Verdict:
    task: Task = AnswerLineTask(config or AnswerLineConfig(), {"train": [problem]})
    return asyncio.run(task.grade(problem, text))


@pytest.mark.parametrize(
    ("text", "outcome", "reward", "detail"),
    [
        ("9 * 2 = 18\n#### The final answer is 18", Outcome.ACCEPTED, 1.5, ""),
        ("#### $18", Outcome.ACCEPTED, 1.0, ""),
        (
            "#### The final answer is 17",
            Outcome.WRONG,
            0.5,
            "says 'The final answer is 17', the answer is 18",
        ),
        ("#### 17 or 18", Outcome.WRONG, 0.0, "does not hold exactly one number: '17 or 18'"),
        ("#### no idea", Outcome.WRONG, 0.0, "does not hold exactly one number"),
        ("The answer is 18.", Outcome.NO_ANSWER, 0.0, "no line begins with ####"),
        ("", Outcome.NO_ANSWER, 0.0, "no line begins with ####"),
        ("Question: x\n#### 18", Outcome.NO_ANSWER, 0.0, "no line begins with ####"),
    ],
)
def test_verdicts_have_format_and_correctness_rewards(text: str, outcome: Outcome, reward: float, detail: str) -> None:
    verdict = grade(text)
    assert (verdict.outcome, verdict.reward) == (outcome, reward)
    assert (verdict.passed, verdict.total) == (int(outcome is Outcome.ACCEPTED), 1)
    assert set(verdict.parts) == {"format", "correct"}
    assert verdict.terms == {"format": (0.5, verdict.parts["format"]), "correct": (1.0, verdict.parts["correct"])}
    assert detail in verdict.detail
    assert 0 <= verdict.seconds < 1


def test_detail_is_short() -> None:
    assert len(grade("#### " + "a lot of words " * 1000).detail) < 200


def test_outcome_does_not_depend_on_rewards() -> None:
    verdict = grade("#### 18", AnswerLineConfig(rewards={"format": 1.0}))
    assert (verdict.outcome, verdict.reward, verdict.parts) == (Outcome.ACCEPTED, 0.0, {"format": 0.0})


def test_a_failing_reward_is_a_judge_error(monkeypatch: pytest.MonkeyPatch) -> None:
    verifiers = ModuleType("verifiers")
    verifiers.bad = lambda problem, text: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "verifiers", verifiers)
    verdict = grade("#### 18", AnswerLineConfig(rewards={"correct": 1.0, "verifiers:bad": 1.0}))
    assert (verdict.outcome, verdict.reward, verdict.passed) == (Outcome.JUDGE_ERROR, None, 0)
    assert verdict.detail.startswith("p/1: reward 'bad' raised ZeroDivisionError: division by zero (")
    assert "test_answer_line.py, line " in verdict.detail


@pytest.mark.parametrize("reference", [None, "", "eighteen", ["18", "19"]])
def test_an_unusable_reference_is_a_judge_error(reference: object) -> None:
    verdict = grade("#### 18", problem=Problem("p/2", "p", (), reference))
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert verdict.detail.startswith("p/2: the reference ")


def test_problems_by_split() -> None:
    task = AnswerLineTask(AnswerLineConfig(), {"train": [PROBLEM], "test": []})
    assert task.problems("train") == [PROBLEM]
    assert task.problems("test") == []
    with pytest.raises(DataError, match="the data has no split 'dev'; splits: 'train', 'test'"):
        task.problems("dev")


def test_the_default_configuration() -> None:
    config = AnswerLineConfig()
    assert config.rewards == {"format": 0.5, "correct": 1.0}
    assert config.timeout_s == 10
    assert config.name == "answer_line"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rewards": {}}, "at least 1 item"),
        ({"rewards": {"correct": float("nan")}}, "finite number"),
        ({"rewards": {"correct": float("inf")}}, "finite number"),
        ({"rewards": {"correct": "much"}}, "valid number"),
        ({"rewards": {"corect": 1, "fromat": 1}}, "'corect'.*'correct'\\?; .*'fromat'.*'format'\\?"),
        ({"timeout_s": 0}, "greater than 0"),
        ({"timeout_s": float("inf")}, "finite number"),
        ({"weights": {}}, "Extra inputs"),
        ({"name": "other"}, "'answer_line'"),
    ],
)
def test_invalid_configuration_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        AnswerLineConfig.model_validate(settings)


def test_reward_that_cannot_be_imported_is_refused() -> None:
    config = AnswerLineConfig(rewards={"no_such_package:verify": 1.0})
    with pytest.raises(ConfigError, match="no_such_package"):
        AnswerLineTask(config, {})


def test_arithmetic_is_graded_by_the_same_task() -> None:
    problem = ArithmeticConfig().load("test")[0]
    assert grade(f"#### The final answer is {problem.reference}", problem=problem).reward == 1.5


def test_sampling_and_grading_stop_at_the_same_text() -> None:
    assert STOP == (NEXT_QUESTION,)  # the rooms do not know each other, so nothing else keeps them equal


def gsm8k(folder: Path) -> Iterator[tuple[Problem, str]]:
    """Every problem with the reasoning of its worked solution."""
    for split, size in (("train", 7473), ("test", 1319)):
        problems = Gsm8kConfig(path=folder).load(split)
        assert len(problems) == size
        with (folder / f"{split}.jsonl").open(encoding="utf-8", newline="\n") as lines:
            for problem, line in zip(problems, lines, strict=True):
                reasoning, _, answer = json.loads(line)["answer"].rpartition("\n#### ")
                assert problem.reference == answer
                yield problem, reasoning


def test_gsm8k_references_get_full_reward(shared_data: Path) -> None:
    async def main() -> None:
        task = AnswerLineTask(AnswerLineConfig(), {})
        count = 0
        for problem, reasoning in gsm8k(shared_data / "gsm8k"):
            verdict = await task.grade(problem, f"{reasoning}\n#### The final answer is {problem.reference}")
            assert (verdict.outcome, verdict.reward) == (Outcome.ACCEPTED, 1.5), (problem.id, verdict)
            # Both sides are read by the same code, so check against something else that it reads right.
            assert read_number(str(problem.reference)) == Fraction(str(problem.reference).replace(",", ""))
            count += 1
        assert count == 8792

    asyncio.run(main())


@pytest.mark.parametrize("by", [1, -1])
def test_gsm8k_answers_off_by_one_get_the_format_reward_only(shared_data: Path, by: int) -> None:
    async def main() -> None:
        task = AnswerLineTask(AnswerLineConfig(), {})
        for problem, reasoning in gsm8k(shared_data / "gsm8k"):
            off = int(str(problem.reference).replace(",", "")) + by
            verdict = await task.grade(problem, f"{reasoning}\n#### The final answer is {off:,}")
            assert (verdict.outcome, verdict.reward) == (Outcome.WRONG, 0.5), (problem.id, verdict)

    asyncio.run(main())

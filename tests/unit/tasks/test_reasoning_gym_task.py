"""Puzzles scored by the generators that made them."""

import ast
import asyncio
from collections import Counter
from typing import Any

import pytest

from dojang.core import section
from dojang.core.errors import ConfigError
from dojang.data.reasoning_gym import ReasoningGymConfig
from dojang.tasks.reasoning_gym import ReasoningGymTask, ReasoningGymTaskConfig
from dojang.types import Message, Outcome, Problem, Verdict

# Generators whose problems have what is easily lost on the way: tuples, numbered keys, numpy's numbers.
ODD = ("arc_agi", "codeio", "graph_color", "knights_knaves", "rearc", "tower_of_hanoi")


@pytest.fixture(scope="module")
def problems() -> dict[str, Problem]:
    """One of each."""
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    names = [*ODD, "chain_sum", "countdown", "prime_factorization", "word_ladder"]
    config = ReasoningGymConfig.model_validate(
        {"generators": {name: {} for name in names}, "train_size": 1, "test_size": 100}
    )
    found = {each.tier: each for each in config.load("test")}
    assert set(found) == set(names)
    return found


@pytest.fixture(scope="module")
def task() -> ReasoningGymTask:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    return ReasoningGymTaskConfig(timeout_s=30).make({})


def grade(task: ReasoningGymTask, *pairs: tuple[Problem, str]) -> list[Verdict]:
    async def all_of_them() -> list[Verdict]:
        return await asyncio.gather(*(task.grade(problem, text) for problem, text in pairs))

    return asyncio.run(all_of_them())


def answer(problem: Problem) -> str:
    return str(ast.literal_eval(problem.reference["entry"])["answer"])  # type: ignore[index]


def test_reference_answers_are_accepted(task: ReasoningGymTask, problems: dict[str, Problem]) -> None:
    known = [
        each for name, each in problems.items() if name != "graph_color"
    ]  # which has many right ones, and names none
    verdicts = grade(task, *((each, f"Let me see.\n<answer>{answer(each)}</answer>") for each in known))
    assert Counter(each.outcome for each in verdicts) == {Outcome.ACCEPTED: len(known)}
    assert {each.reward for each in verdicts} == {1.0}


def test_alternative_correct_answer_is_accepted(task: ReasoningGymTask, problems: dict[str, Problem]) -> None:
    problem = problems["graph_color"]
    puzzle: Any = ast.literal_eval(problem.reference["entry"])["metadata"]["puzzle"]  # type: ignore[index]
    colours: dict[int, int] = {}
    for vertex in puzzle["vertices"]:
        near = {colours.get(b if a == vertex else a) for a, b in puzzle["edges"] if vertex in (a, b)}
        colours[vertex] = next(each for each in puzzle["color_options"] if each not in near)
    said = "{" + ", ".join(f'"{vertex}": {colour}' for vertex, colour in colours.items()) + "}"
    clash = "{" + ", ".join(f'"{vertex}": 1' for vertex in colours) + "}"
    right, wrong = grade(task, (problem, f"<answer>{said}</answer>"), (problem, f"<answer>{clash}</answer>"))
    assert right.outcome is Outcome.ACCEPTED
    assert wrong.outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("<answer>-1234567</answer>", Outcome.WRONG),
        ("<answer></answer>", Outcome.WRONG),
        ("It is RIGHT.", Outcome.NO_ANSWER),
        ("<answer>RIGHT", Outcome.NO_ANSWER),
        ("<answer>0</answer> no, <answer> RIGHT </answer>.", Outcome.ACCEPTED),
        ("<answer>RIGHT</answer> no, <answer>0</answer>.", Outcome.WRONG),
        ("", Outcome.NO_ANSWER),
        ("\x00<answer>\ud800</answer>", Outcome.WRONG),
    ],
)
def test_the_last_answer_in_tags_counts(
    task: ReasoningGymTask, problems: dict[str, Problem], text: str, outcome: Outcome
) -> None:
    problem = problems["chain_sum"]
    (verdict,) = grade(task, (problem, text.replace("RIGHT", answer(problem))))
    assert verdict.outcome is outcome
    assert verdict.parts == {"score": verdict.reward}
    assert (verdict.reward == 1) == (outcome is Outcome.ACCEPTED)


def test_an_answer_may_be_partly_right(task: ReasoningGymTask, problems: dict[str, Problem]) -> None:
    (verdict,) = grade(task, (problems["countdown"], "<answer>1 + 1</answer>"))
    assert verdict.outcome is Outcome.WRONG
    assert verdict.reward is not None
    assert 0 < verdict.reward < 1


def test_generator_settings_reach_the_scorer(task: ReasoningGymTask, problems: dict[str, Problem]) -> None:
    reference: Any = problems["chain_sum"].reference
    strange = Problem("x", "x", (), {**reference, "settings": {"min_terms": 9, "max_terms": 2}})
    (verdict,) = grade(task, (strange, "<answer>1</answer>"))
    assert verdict.outcome is Outcome.JUDGE_ERROR
    assert "max_terms" in verdict.detail


def test_failing_generator_is_a_judge_error(task: ReasoningGymTask, problems: dict[str, Problem]) -> None:
    problem = problems["prime_factorization"]
    failed, right, foreign = grade(
        task,
        (problem, "<answer>who knows</answer>"),  # which it cannot read, and raises
        (problem, f"<answer>{answer(problem)}</answer>"),
        (Problem("sums/1", "sums", (Message("user", "1+1?"),), "2"), "<answer>2</answer>"),
    )
    assert (failed.outcome, failed.reward) == (Outcome.JUDGE_ERROR, None)
    assert "ValueError" in failed.detail
    assert right.outcome is Outcome.ACCEPTED
    assert foreign.detail == "sums/1: not a reasoning-gym problem"


def test_hanging_generator_is_a_judge_error(problems: dict[str, Problem]) -> None:
    brisk = ReasoningGymTaskConfig(timeout_s=1, workers=1).make({})
    hard = Problem("x", "x", (), {**problems["chain_sum"].reference, "generator": "complex_arithmetic"})  # type: ignore[dict-item]
    text = "<answer>" + "9**" * 9 + "9</answer>"
    hanging, after = grade(brisk, (hard, text), (problems["chain_sum"], "<answer>no</answer>"))
    assert (hanging.outcome, hanging.reward) == (Outcome.JUDGE_ERROR, None)
    assert after.outcome is Outcome.WRONG


def test_missing_reasoning_gym_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dojang\[reasoning-gym\]'"):
        ReasoningGymTaskConfig().make({})

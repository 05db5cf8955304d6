"""Reward functions as publications print them: columns of the rows by name, completions in the form they expect."""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dojang.build import assemble
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError
from dojang.data.files import FilesConfig
from dojang.data.gsm8k import Gsm8kConfig
from dojang.data.prepared import PreparedConfig
from dojang.data.rows import to_row
from dojang.integrations.reward_functions import as_trl_reward
from dojang.runs import dry_run
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.rewards import WeightedRewards
from dojang.types import Message, Problem, Verdict

PROBLEM = Problem(
    "sums/1",
    "sums",
    (Message("user", "9 * 2?"),),
    "18",
    columns={"question": "9 * 2?", "answer": "9 * 2 = 18\n#### 18", "final_answer": "18", "level": 3},
)
RIGHT = "9 * 2 = 18.\n#### The final answer is 18"


def format_reward_func(completions: Sequence[str], **kwargs: Any) -> list[float]:
    """Text with the published answer line."""
    return [0.5 if re.search(r"\n#### The final answer is \d+", text) else 0.0 for text in completions]


def correctness_reward_func(completions: Sequence[str], final_answer: Sequence[str], **kwargs: Any) -> list[float]:
    """Text whose last number is the row's final answer."""
    found = [re.findall(r"\d+", text) for text in completions]
    return [float(bool(some) and some[-1] == right) for some, right in zip(found, final_answer, strict=True)]


def accuracy_reward(completions: Sequence[Any], solution: Sequence[str], **kwargs: Any) -> list[float | None]:
    """Messages with the solution in a box."""
    contents = [completion[0]["content"] for completion in completions]
    return [float(f"\\boxed{{{right}}}" in text) for text, right in zip(contents, solution, strict=True)]


def contains(completions: Sequence[str], **kwargs: Any) -> list[float]:
    """For text; silent about messages."""
    return [float("####" in completion) for completion in completions]


def careful(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """For messages; catches what it is told otherwise."""
    found = []
    for completion in completions:
        try:
            found.append(float("####" in completion[0]["content"]))
        except TypeError:
            found.append(0.0)
    return found


async def later(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """Async, for messages."""
    await asyncio.sleep(0)
    return [float(len(completion[-1]["content"]) > 3) for completion in completions]


def by_level(completions: Sequence[Any], level: Sequence[int], **kwargs: Any) -> list[float]:
    """A column of the row."""
    return [each / 10 for each in level]


def broken(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """Never works."""
    raise ZeroDivisionError("the abacus has lost its beads")


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """These functions, importable as `published`."""
    found = ModuleType("published")
    for each in (
        *(format_reward_func, correctness_reward_func, accuracy_reward, contains, careful, later, by_level, broken),
    ):
        setattr(found, each.__name__, each)
    monkeypatch.setitem(sys.modules, "published", found)
    return found


def rewards(*names: str, columns: Sequence[str] = tuple(PROBLEM.columns)) -> WeightedRewards:
    return WeightedRewards({f"published:{name}": 1.0 for name in names}, timeout_s=5, columns=columns)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("format_reward_func", RIGHT, 0.5),
        ("correctness_reward_func", RIGHT, 1.0),
        ("correctness_reward_func", "It is 19.", 0.0),
        ("accuracy_reward", "It is \\boxed{18}.", 1.0),
        ("accuracy_reward", "It is 18.", 0.0),
        ("contains", RIGHT, 1.0),
        ("careful", RIGHT, 1.0),
        ("later", RIGHT, 1.0),
        ("by_level", RIGHT, 0.3),
    ],
)
@pytest.mark.parametrize("checked", [True, False])
def test_published_reward_functions_work_unchanged(name: str, text: str, value: float, checked: bool) -> None:
    async def play() -> float:
        weighted = rewards(name)
        if checked:
            await weighted.check(PROBLEM)
        return (await weighted.score(PROBLEM, text)).total

    assert asyncio.run(play()) == value


def test_the_form_is_found_once() -> None:
    seen: list[Any] = []

    def both(completions: Sequence[Any], **kwargs: Any) -> list[float]:
        seen.append(completions[0])
        return [1.0]

    sys.modules["published"].both = both  # type: ignore[attr-defined]
    weighted = rewards("both")
    asyncio.run(weighted.check(PROBLEM))
    tried = len(seen)
    asyncio.run(weighted.score(PROBLEM, RIGHT))
    asyncio.run(weighted.score(PROBLEM, RIGHT))
    assert (
        seen[tried:] == [[{"role": "assistant", "content": RIGHT}]] * 2
    )  # as TRL does where prompts are conversations


def test_a_plain_text_prompt_has_plain_text_completions_where_both_forms_work() -> None:
    seen: list[Any] = []

    def both(completions: Sequence[Any], prompts: Sequence[Any]) -> list[float]:
        seen.append(completions[0])
        return [1.0]

    sys.modules["published"].both = both  # type: ignore[attr-defined]
    problem = Problem("sums/2", "sums", (Message("text", "9 * 2 ="),), "18")
    asyncio.run(rewards("both").score(problem, RIGHT))
    assert seen[-1] == RIGHT


def test_function_that_always_raises_is_refused_with_its_exception() -> None:
    with pytest.raises(ConfigError, match=r"'broken' raised ZeroDivisionError: the abacus.* as messages and as text"):
        asyncio.run(rewards("broken").check(PROBLEM))


def test_a_function_for_verl_that_returns_no_number_is_refused_before_the_run() -> None:
    sys.modules["published"].pair = lambda solution_str, ground_truth: (1.0, {})  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"'pair' returned \(1\.0, \{\}\), not a finite number.* as text"):
        asyncio.run(rewards("pair").check(PROBLEM))


def test_missing_column_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no value is available for level; available: .*question"):
        rewards("by_level", columns=("question",))


@pytest.mark.parametrize("task", ["answer_line", "maths"])
def test_run_is_refused_before_it_starts(task: str) -> None:
    said = ["task={name: " + task + ", rewards: {'published:broken': 1.0}}", "model.device=cpu"]
    for attempt in (lambda config: assemble.prepare(config), lambda config: dry_run.describe(config)):
        with pytest.raises(ConfigError, match="the abacus has lost its beads"):
            attempt(recipes.load("quickstart", said))


def test_functions_may_not_change_columns() -> None:
    def greedy(completions: Sequence[Any], tags: Any) -> list[float]:
        tags[0].append("x")
        return [float(len(tags[0]))]

    sys.modules["published"].greedy = greedy  # type: ignore[attr-defined]
    problem = Problem("sums/3", "sums", (Message("user", "?"),), "1", columns={"tags": ["a"]})
    weighted = rewards("greedy", columns=("tags",))
    assert [asyncio.run(weighted.score(problem, "x")).total for _ in range(2)] == [2.0, 2.0]
    assert problem.columns == {"tags": ["a"]}


def grade(task: Any, problem: Problem, text: str) -> Verdict:
    verdict: Verdict = asyncio.run(task.grade(problem, text))
    return verdict


def test_columns_of_gsm8k(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(3)]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    problems = Gsm8kConfig(path=tmp_path).load("train")
    assert problems[1].columns == {"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2", "final_answer": "2"}
    assert not any("1 + 1 = 2" in message.content for message in problems[1].messages)
    named = {"published:correctness_reward_func": 1.0, "published:format_reward_func": 1.0}
    task = AnswerLineConfig.model_validate({"rewards": named}).make({"train": problems})
    asyncio.run(task.check_rewards(problems[0]))
    assert grade(task, problems[1], "1 + 1 = 2.\n#### The final answer is 2").reward == 1.5


def test_columns_of_files_and_of_parquet_rows(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "2 + 2?", "answer": "4", "level": 7}) + "\n")
    (mine,) = FilesConfig(train=tmp_path / "rows.jsonl", test=tmp_path / "rows.jsonl").load("train")
    assert mine.columns == {"question": "2 + 2?", "answer": "4", "level": 7}
    row = {**to_row(PROBLEM, ability="math", split="train", index=0), "level": 5}
    for split in ("train", "test"):
        (tmp_path / "prepared" / split).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "prepared" / split / "part.parquet")
    (theirs,) = PreparedConfig(path=tmp_path / "prepared").load("train")
    assert theirs.columns["level"] == 5
    for problem, value in ((mine, 0.7), (theirs, 0.5)):
        task = AnswerLineConfig.model_validate({"rewards": {"published:by_level": 1.0}}).make({"train": [problem]})
        assert grade(task, problem, RIGHT).reward == value


def test_trl_columns_reach_reward_functions() -> None:
    reward = as_trl_reward({"name": "answer_line", "rewards": {"published:by_level": 1.0}}, reference="solution")
    try:
        assert reward(completions=["#### 4", "#### 5"], prompts=["a", "b"], solution=["4", "5"], level=[1, 2]) == [
            0.1,
            0.2,
        ]
    finally:
        reward.close()

"""Problems with several right answers: suspected, left out of training, counted and told."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from dojang.build import assemble
from dojang.build.multiple_answers import has_multiple_answers
from dojang.commands import app
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, DataError
from dojang.planning import checks
from dojang.runs import dry_run
from dojang.tasks.code import CodeConfig
from dojang.types import Message, Problem

ANY = "If there are several answers, print any of them."
PROGRAM = {"name": "program", "language": "python3", "source": "pass"}
TEST = {"input": "1 2", "output": "0.5"}
MINE = """
from dojang.types import Message, Problem

TESTS = [{"input": "1 2", "output": "3"}]


def problem(split, n, statement):
    reference = {"private": TESTS, "language": "python3"}
    return Problem(f"{split}/{n}", "mine", (Message("user", statement),), reference)


def problems(split):
    return [problem(split, n, "Print any of them." if n in (1, 4) else "Add.") for n in range(6)]


def all_suspected(split):
    return [problem(split, n, "Print any of them.") for n in range(6)]
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_answers.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mine_answers", None)


def load(name: str, filtered: bool, *overrides: str) -> Any:
    data = {"name": "custom", "load_with": f"mine_answers:{name}", "filter_multiple_answers": filtered}
    small = (
        "model.device=cpu",
        "rollout.prompts_per_step=2",
        "rollout.group_size=2",
        "rollout.max_tokens=8",
        "eval.problems=4",
    )
    task = "task={name: code, language: python3}"
    return recipes.load("quickstart", [*small, task, f"data={json.dumps(data)}", *overrides])


@pytest.mark.parametrize(
    ("statement", "reference", "suspected"),
    [
        ("Add.", {"private": [TEST]}, False),
        (ANY, {"private": [TEST]}, True),
        (ANY, {"private": [TEST], "checker": {"name": "contest"}}, True),
        (ANY, {"private": [TEST], "checker": PROGRAM}, False),
        ("Print them in any order.", {"private": [TEST], "checker": {"name": "unordered"}}, False),
        (ANY, {"private": [{"code": "assert f(1) == 2", "function": "f"}], "language": "python3"}, False),
        ("Add.", {"private": [TEST], "public": [{"input": "1  2\n", "output": "0.7"}]}, True),
        ("Add.", {"private": [TEST], "public": [{"input": "1  2\n", "output": "0.50"}]}, True),
        ("Add.", {"private": [TEST, {**TEST, "output": "0.50"}], "checker": {"name": "contest"}}, False),
        (ANY, "not tests at all", False),
    ],
)
def test_which_problems_are_suspected(statement: str, reference: Any, suspected: bool) -> None:
    problem = Problem("p", "made up", (Message("user", statement),), reference)
    assert has_multiple_answers(CodeConfig(), problem) is suspected


def test_suspected_problems_are_left_out_of_training_and_counted() -> None:
    prepared = assemble.prepare(load("problems", True, "epochs=1"), dry=True)
    asyncio.run(prepared.judge.close())
    assert [problem.id for problem in prepared.train] == [f"train/{n}" for n in (0, 2, 3, 5)]
    assert [problem.id for problem in prepared.held_out] == [f"test/{n}" for n in range(4)]
    assert prepared.multiple_answers == 2
    assert prepared.config.steps == 2, "an epoch is over the problems that are left"
    unfiltered = assemble.prepare(load("problems", False), dry=True)
    asyncio.run(unfiltered.judge.close())
    assert unfiltered.multiple_answers == 0


def test_dry_run_and_plan_say_how_many_are_left_out() -> None:
    said = "problems with several right answers left out: 2 of the train split"
    config = load("problems", True)
    assert said in dry_run.describe(config)
    assert said in [each.said for each in checks.check_data(config, {"policy": None}, None, 1).findings]
    assert "several right answers" not in dry_run.describe(load("problems", False))


def test_no_problem_left_and_another_task_are_refused() -> None:
    with pytest.raises(DataError, match="leaves no training problem: all 6 may have several right answers"):
        assemble.prepare(load("all_suspected", True), dry=True)
    with pytest.raises(ConfigError, match=r"task\.name=answer_line does not have"):
        assemble.prepare(recipes.load("quickstart", ["data.filter_multiple_answers=true"]), dry=True)


def test_recipes_for_contest_data_filter_by_default() -> None:
    folder = Path(recipes.__file__).parents[1] / "recipes"
    on_contests = [each for each in folder.glob("*.yaml") if each.name.startswith(("codefu-", "code-"))]
    assert len(on_contests) >= 7
    for each in on_contests:
        assert yaml.safe_load(each.read_text())["data"]["filter_multiple_answers"] is True, each.name


def test_a_run_says_how_many_are_left_out(tmp_path: Path) -> None:
    recipe, run = tmp_path / "mine.yaml", tmp_path / "run"
    recipe.write_text(recipes.to_yaml(load("problems", True, "steps=1")))
    asked = ["train", str(recipe), "--run-dir", str(run)]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "problems with several right answers left out: 2 of the train split" in result.output
    assert json.loads((run / "summary.json").read_text())["multiple_answers"] == 2


def test_data_prepare_counts_and_names_them(tmp_path: Path) -> None:
    def row(name: str, statement: str) -> dict[str, Any]:
        tests = {"input": ["1 2", "2 3"], "output": ["3", "5"]}
        return {
            "name": name,
            "description": f"Read two numbers of standard input, then add them. {statement}",
            "cf_rating": 800,
            **{f"{kind}_tests": tests for kind in ("public", "private", "generated")},
            "time_limit": {"seconds": 1, "nanos": 0},
            "memory_limit_bytes": 256 * 10**6,
        }

    rows = [row("1_A. Sum", ANY), row("2_A. Total", "There is one answer to each of the questions.")]
    given = tmp_path / "in" / "train.jsonl"
    given.parent.mkdir()
    given.write_text("".join(json.dumps(each) + os.linesep for each in rows))
    asked = ["data", "prepare", "code-contests", "--input", str(given), "--output", str(tmp_path / "out")]
    result = CliRunner().invoke(app, asked, catch_exceptions=False)
    told = " ".join(result.output.split())
    assert "1 training problems may have several right answers; data.filter_multiple_answers=true leaves" in told
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["multiple_answers"] == ["code_contests/1_A. Sum"]
    assert report["kept"] == {"train": 2}

"""Overlong prompts: refused or left out before a run begins; epochs are counted over the problems that are left."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import PreTrainedTokenizerBase
from typer.testing import CliRunner

import commands
from dojang.build import assemble
from dojang.commands import app
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, DataError, TooLong
from dojang.planning import checks
from dojang.runs import dry_run
from dojang.types import Message
from dojang.workflows.chat_renderer import ChatRenderer

MINE = """
from dojang.types import Message, Problem

LONG = {"train": (1, 3), "test": (0,)}


def problem(split, n, words):
    return Problem(f"{split}/{n}", "mine", (Message("user", "7 " * words + f"say {n}"),), str(n))


def problems(split):
    return [problem(split, n, 600 if n in LONG[split] else 1) for n in range(10)]


def short(split):
    return [problem(split, n, 1) for n in range(10)]


def one_long(split):
    # long in tokens, though others have more characters
    return [*(problem(split, n, 120) for n in range(20)), problem(split, 20, 1),
            Problem(f"{split}/dense", "mine", (Message("user", "\\U0001F600" * 90),), "1")]


def all_long(split):
    return [problem(split, n, 600) for n in range(4)]
"""
SMALL = (
    *(
        "model.device=cpu",
        "model.dtype=float32",
        "rollout.prompts_per_step=2",
        "rollout.group_size=2",
        "rollout.max_tokens=8",
    ),
    *("eval.problems=4", "eval.every=1000", "checkpoint.every=1000"),
)


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own module, importable for one test."""
    (tmp_path / "mine_prompts.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    sys.modules.pop("mine_prompts", None)


def data(name: str, **more: Any) -> str:
    return "data=" + json.dumps({"name": "custom", "load_with": f"mine_prompts:{name}", **more})


def load(*overrides: str) -> Any:
    return recipes.load("quickstart", [*SMALL, *overrides])


def dojang(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "dojang", *arguments]
    return commands.run(command, capture_output=True, text=True, timeout=300, cwd=cwd, env=environment)


def test_overlong_prompts_are_left_out_and_counted() -> None:
    config = load(data("problems", filter_overlong_prompts=True))
    prepared = assemble.prepare(config)
    assert [problem.id for problem in prepared.train] == [f"train/{n}" for n in (0, 2, 4, 5, 6, 7, 8, 9)]
    assert [problem.id for problem in prepared.held_out] == [f"test/{n}" for n in (1, 2, 3, 4)]
    assert prepared.dropped == {"train": 2, "test": 1}


def test_without_the_setting_an_overlong_prompt_is_refused_by_name() -> None:
    with pytest.raises(TooLong, match=r"2 of 10 problems of the train split.*train/1: .*filter_overlong_prompts=true"):
        assemble.prepare(load(data("problems")))


def test_every_prompt_is_measured_not_only_those_of_most_characters() -> None:
    with pytest.raises(TooLong, match="the first is train/dense"):
        assemble.prepare(load(data("one_long"), "rollout.max_tokens=200"))


def test_a_split_with_overlong_prompts_only_is_an_error() -> None:
    with pytest.raises(DataError, match="leaves no problem of the train split: all 4 prompts"):
        assemble.prepare(load(data("all_long", filter_overlong_prompts=True)))


def test_a_dry_run_says_how_many_prompts_are_left_out() -> None:
    said = dry_run.describe(load(data("problems", filter_overlong_prompts=True)))
    assert "8 training and 9 held-out problems" in said
    assert "overlong prompts left out: 2 of the train split, 1 of the test split" in said


def test_a_plan_says_how_many_prompts_are_left_out_or_what_is_refused() -> None:
    found = checks.check_data(load(data("problems", filter_overlong_prompts=True)), {"policy": None}, None, 1)
    assert "overlong prompts left out: 2 of the train split, 1 of the test split" in [
        each.said for each in found.findings
    ]
    refused = checks.check_data(load(data("problems")), {"policy": None}, None, 1)
    (failed,) = [each for each in refused.findings if each.level == "failed" and each.about == "prompts"]
    assert "2 of 10 problems of the train split" in failed.said


def test_an_evaluation_leaves_overlong_prompts_out_and_counts_them(tmp_path: Path) -> None:
    recipe, output = tmp_path / "mine.yaml", tmp_path / "out"
    recipe.write_text(recipes.to_yaml(load(data("problems"))))
    asked = ["eval", "dojang-tiny", "--recipe", str(recipe), "--problems", "4", "--output", str(output)]
    with pytest.raises(TooLong, match=r"1 of 4 problems of the test split"):
        CliRunner().invoke(app, asked, catch_exceptions=False)
    assert not output.exists()
    result = CliRunner().invoke(app, [*asked, "data.filter_overlong_prompts=true"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "1 overlong prompts dropped" in result.output
    (found,) = json.loads((output / "results.json").read_text())["results"]
    assert found["overlong_prompts"] == 1
    assert [each["id"] for each in found["answers"]] == [f"test/{n}" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("words", [1, 30, 200])
@pytest.mark.parametrize(
    "text", ["what is 1+1? ", "naïve \N{GRINNING FACE} ", "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}"]
)
def test_overlong_prompts_are_those_that_render_refuses(
    tokenizer: PreTrainedTokenizerBase, text: str, words: int
) -> None:
    prompts = [(Message("user", text * count),) for count in range(0, words, 7)]
    renderer = ChatRenderer(tokenizer, context=200, max_tokens=20)

    def refused(place: int) -> bool:
        try:
            renderer.render(prompts[place])
        except TooLong:
            return True
        return False

    assert renderer.overlong(prompts) == [place for place in range(len(prompts)) if refused(place)]


def test_max_model_len_is_the_context() -> None:
    assert assemble.prepare(load(data("short"), "rollout.max_model_len=64")).train
    with pytest.raises(TooLong, match=r"do not fit rollout\.max_model_len of 12 tokens"):
        assemble.prepare(load(data("short"), "rollout.max_model_len=12"))


@pytest.mark.parametrize(
    ("value", "said"),
    [("513", "exceeds the context length of dojang-tiny, 512 tokens"), ("8", "leaves no space for a prompt")],
)
def test_a_context_the_model_does_not_have_is_refused(value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        assemble.prepare(load(data("short"), f"rollout.max_model_len={value}"))


@pytest.mark.parametrize(
    ("epochs", "name", "filtered", "steps"),
    [("2", "short", False, 10), ("0.5", "short", False, 3), ("2", "problems", True, 8), ("0.01", "short", False, 1)],
)
def test_epochs_become_steps(epochs: str, name: str, filtered: bool, steps: int) -> None:
    config = load(f"epochs={epochs}", data(name, filter_overlong_prompts=filtered))
    found = assemble.prepare(config).config
    assert (found.steps, found.epochs) == (steps, None)
    assert f"steps   {steps} of 2 problems" in dry_run.describe(config)


def test_epochs_and_steps_exclude_each_other_but_an_override_replaces_the_recipe() -> None:
    with pytest.raises(ConfigError, match=r"steps=5 and epochs=2 exclude each other"):
        load("steps=5", "epochs=2")
    assert load("epochs=2").epochs == 2
    assert recipes.load("quickstart").steps == recipes.load("quickstart", ["seed=1"]).steps


def test_unresolved_epochs_survive_writing_and_reading() -> None:
    config = load("epochs=2.5")
    tree = yaml.safe_load(recipes.to_yaml(config))
    assert (tree["epochs"], tree["steps"]) == (2.5, None)
    assert recipes.resolve("written", tree) == config


def test_settings_that_depend_on_steps_are_checked_after_epochs_are_resolved() -> None:
    config = load("epochs=1", "algo.name=ppo", "train.critic.warmup_steps=7", data("short"))
    with pytest.raises(ConfigError, match=r"epochs=1 of 10 problems: .*leaves none of the run's 5 optimizer steps"):
        assemble.prepare(config)


def test_an_override_of_warm_up_replaces_the_recipes_other_one(tmp_path: Path) -> None:
    config = recipes.load("quickstart", ["train.warmup_ratio=0.1"])
    assert (config.train.warmup_steps, config.train.warmup_ratio) == (0, 0.1)


@pytest.mark.slow
def test_an_overlong_prompt_leaves_no_run_directory_behind(tmp_path: Path) -> None:
    result = dojang("train", "quickstart", *SMALL, data("problems"), "steps=1", "--run-dir", "run", cwd=tmp_path)
    assert result.returncode == ConfigError.exit_code, result.stderr
    assert "data.filter_overlong_prompts=true" in " ".join(result.stderr.split())
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_of_epochs_records_its_steps_and_resumes(tmp_path: Path) -> None:
    settings = (*SMALL, data("problems", filter_overlong_prompts=True), "epochs=0.5", "--run-dir", "run")
    result = dojang("train", "quickstart", *settings, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "overlong prompts left out: 2 of the train split, 1 of the test split" in " ".join(result.stdout.split())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["steps"], summary["overlong_prompts"]) == (2, {"train": 2, "test": 1})
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["steps"] == 2
    longer = [each.replace("epochs=0.5", "epochs=1") for each in settings]
    result = dojang("train", "quickstart", *longer, "--resume", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 4
    result = dojang("train", "quickstart", *settings, "--resume", cwd=tmp_path)
    assert result.returncode == ConfigError.exit_code
    assert "has done 4 steps already; steps=2 is fewer" in " ".join(result.stderr.split())

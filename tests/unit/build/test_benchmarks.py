"""Benchmarks of a training run: what is loaded, how each is graded, and what is refused before anything runs."""

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import pytest

from dojang.build import assemble
from dojang.build.benchmarks import Loaded, load_benchmarks
from dojang.build.sampling import eval_sampling
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError
from dojang.runs.training import dry_run
from dojang.tasks.code import CodeConfig
from dojang.types import Message, Problem

HELD_OUT = [Problem("a/1", "books", (Message("user", "?"),), "")]


def config(*overrides: str, recipe: str = "quickstart") -> RunConfig:
    return recipes.load(recipe, overrides)


def loaded(benchmark: str, *overrides: str, name: str = "extra", recipe: str = "quickstart") -> Loaded:
    (only,) = load_benchmarks(config(f"eval.benchmarks.{name}={benchmark}", *overrides, recipe=recipe), HELD_OUT)
    return only


def test_a_benchmark_has_separate_data_task_and_sampling() -> None:
    found = loaded("{data: {name: arithmetic, digits: 3}, every: 5, problems: 7, samples: 2, temperature: 0.6}")
    assert (found.name, found.every, found.config.eval.problems) == ("extra", 5, 7)
    assert found.config.task.name == "answer_line"
    sampling = eval_sampling(found.config)
    assert (found.config.eval.samples, sampling.temperature, sampling.max_tokens) == (2, 0.6, 32)
    assert len(loaded("{data: {name: arithmetic, test_size: 30}}").problems) == 30


@pytest.mark.parametrize(
    ("task", "most"),
    [
        ("", None),
        (", task: {name: code, language: python3}", None),
        (", task: {name: code, language: python3, max_tests: 5}", 5),
    ],
)
def test_programs_of_benchmarks_are_run_on_all_tests(task: str, most: int | None, tmp_path: Path) -> None:
    overrides = ["task.max_tests=3", "task.reward_shape=all_or_nothing"]
    found = loaded(f"{{data: {{name: functions}}, problems: 2{task}}}", *overrides, recipe="quickstart-code")
    assert isinstance(found.config.task, CodeConfig)
    assert (found.config.task.max_tests, found.config.task.language) == (most, "python3")
    assert found.config.task.reward_shape == (
        "fraction" if task else "all_or_nothing"
    )  # the run's own, where none is given
    again = tmp_path / "config.yaml"
    whole = config(f"eval.benchmarks.extra={{data: {{name: functions}}{task}}}")
    again.write_text(recipes.to_yaml(whole))
    assert recipes.load(str(again)) == whole


def test_a_name_that_is_a_data_source_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"eval.benchmarks.books has the name of a data source .*val/accuracy/books"):
        loaded("{data: {name: arithmetic}}", name="books")


def test_missing_data_is_refused_by_a_dry_run(tmp_path: Path) -> None:
    benchmark = f"{{data: {{name: prepared, path: {tmp_path / 'none'}}}}}"
    with pytest.raises(DataError, match=r"eval.benchmarks.extra: data.path=.*none is not a directory"):
        dry_run("quickstart", [f"eval.benchmarks.extra={benchmark}"])


def test_a_dry_run_says_what_is_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    dry_run("quickstart", ["eval.benchmarks.long={data: {name: arithmetic, digits: 3}, problems: 9}"])
    said = capsys.readouterr().out
    assert "long: 9 problems before, every 25 steps, and after; task.name=answer_line" in said


def test_prompts_of_benchmarks_must_fit_too() -> None:
    prepared = assemble.prepare(config("eval.benchmarks.long={data: {name: arithmetic, digits: 6}, problems: 3}"))
    asyncio.run(prepared.judge.close())
    ((benchmark, _),) = prepared.benchmarks
    assert [problem.messages for problem in benchmark.problems] == prepared.prompts[-3:]


@pytest.mark.parametrize("filtered", [False, True])
def test_overlong_prompts_of_a_benchmark_are_refused_or_left_out(filtered: bool) -> None:
    """Six digits take more tokens than two, and the context is chosen to have room for two."""
    benchmark = f"{{data: {{name: arithmetic, digits: 6, filter_overlong_prompts: {filtered}}}, problems: 3}}"
    settings = [f"eval.benchmarks.long={benchmark}", "rollout.max_model_len=43"]
    with pytest.raises(
        DataError if filtered else ConfigError,
        match="leaves no problem of the long split" if filtered else "problems of the long split have overlong prompts",
    ):
        assemble.prepare(config(*settings))


def test_a_run_that_filters_overlong_prompts_filters_those_of_benchmarks() -> None:
    settings = ["eval.benchmarks.long={data: {name: arithmetic, digits: 6}}", "rollout.max_model_len=43"]
    with pytest.raises(DataError, match="leaves no problem of the long split"):
        assemble.prepare(config(*settings, "data.filter_overlong_prompts=true"))


def test_a_reward_function_that_cannot_grade_a_benchmark_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rewards = ModuleType("published")
    rewards.by_level = lambda completions, level, **_: [float(each) for each in level]  # type: ignore[attr-defined]
    rewards.by_kind = lambda completions, level=None, **_: [float(each) for each in level or "?"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "published", rewards)
    rows = "".join(f'{{"question": "{n}+{n}=", "answer": "{2 * n}", "level": {n}}}\n' for n in range(30))
    (tmp_path / "rows.jsonl").write_text(rows)
    data = f"data={{name: files, train: {tmp_path / 'rows.jsonl'}, prompt: '{{question}}', answer: answer}}"
    for name, words in (
        ("by_level", "no value is available for level"),
        ("by_kind", "raised ValueError: could not convert"),
    ):
        task = f"task={{name: answer_line, rewards: {{correct: 1, 'published:{name}': 1}}}}"
        with pytest.raises(
            ConfigError, match=rf"^eval.benchmarks.extra: .*{words}.*Without eval.benchmarks.extra.task"
        ):
            assemble.prepare(config(data, task, "eval.benchmarks.extra={data: {name: arithmetic}}"))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("extra={data: {name: arithmetics}}", "eval.benchmarks.extra.data.name: 'arithmetics' is not one of"),
        ("extra={data: {digits: 3}}", "eval.benchmarks.extra.data.name: must be given: one of agent_tasks, arithmetic"),
        ("extra.data.name=arithmetic", ""),
        ("extra={every: 3}", "eval.benchmarks.extra.data: must be given"),
        ("extra={data: {name: arithmetic}, evry: 3}", "did you mean eval.benchmarks.extra.every"),
        ("extra={data: {name: arithmetic}, task: {name: cod}}", "eval.benchmarks.extra.task.name: 'cod' is not one of"),
        ("extra={data: {name: functions}, task: {name: answer_line}}", "data.name=functions asks for programs"),
        ("extra={data: {name: custom, load_with: 'a:b'}}", "eval.benchmarks.extra: task must be given: no task"),
        ("extra={data: {name: arithmetic}, samples: 4}", "greedy answers would all be the same; set temperature"),
        ("a/b={data: {name: arithmetic}}", "eval.benchmarks.a/b"),
    ],
)
def test_mistakes_are_named_by_their_keys(override: str, words: str) -> None:
    if not words:
        assert config(f"eval.benchmarks.{override}").eval.benchmarks["extra"].every == 25
        return
    with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
        config(f"eval.benchmarks.{override}")

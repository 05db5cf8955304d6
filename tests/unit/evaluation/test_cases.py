"""Settings of `dojang eval`: from the recipe or the run, options, and key=value."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.data.gsm8k import Gsm8kConfig
from dojang.data.prepared import PreparedConfig
from dojang.evaluation.cases import find_subject, make_cases
from dojang.evaluation.options import Options
from dojang.tasks.code import CodeConfig

OPTIONS = Options(1, 0.0, 10, None, 0, "cpu", "auto")


def case(
    model: str,
    data: str = "",
    *overrides: str,
    recipe: str = "",
    shots: Sequence[int] = (),
    options: Options = OPTIONS,
    said: list[str] | None = None,
) -> RunConfig:
    subject = find_subject(model, recipe)
    (only,) = make_cases(
        subject, [data] if data else [], shots, options, overrides, ([] if said is None else said).append
    )
    return only.config


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Directory of a run with non-default settings."""
    settings = [
        *("data={name: gsm8k, path: /data/gsm8k, shots: 4}", "model.chat_template_kwargs={enable_thinking: false}"),
        *("rollout.max_tokens=99", "rollout.engine.max_num_seqs=3", "task.timeout_s=7", "judge.workers=1"),
    ]
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step-000002").mkdir(parents=True)
    (folder / "checkpoints" / "best").symlink_to("step-000002")
    (folder / "config.yaml").write_text(recipes.to_yaml(recipes.load("quickstart", settings)))
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a folder `gsm8k` of prepared code problems in it."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gsm8k").mkdir()
    pq.write_table(pa.table({"ability": ["code"]}), tmp_path / "gsm8k" / "test.parquet")
    return tmp_path


def test_dataset_name_takes_precedence_over_a_folder(here: Path) -> None:
    said: list[str] = []
    found = case("dojang-tiny", "gsm8k=/data/gsm8k", said=said)
    assert isinstance(found.data, Gsm8kConfig)
    assert (found.data.path, found.task.name) == (Path("/data/gsm8k"), "answer_line")
    subject = find_subject("dojang-tiny", "")
    (bare,) = make_cases(subject, ["gsm8k"], [], OPTIONS, [], said.append)
    assert bare.config.data.name == "gsm8k"
    assert said == ["--data gsm8k is the dataset gsm8k, not the folder of that name here; for that, write ./gsm8k"]
    folder = case("dojang-tiny", "./gsm8k")
    assert isinstance(folder.data, PreparedConfig)
    assert (folder.data.path, folder.task.name) == (Path("./gsm8k"), "code")


@pytest.mark.parametrize("below", ["", "checkpoints/best", "checkpoints/step-000002"])
def test_settings_come_from_the_run(trained: Path, below: str) -> None:
    subject = find_subject(str(trained / below), "")
    assert subject.trained_from == "dojang-tiny"
    assert subject.path.startswith(str(trained / "checkpoints"))
    found = case(str(trained / below))
    assert isinstance(found.data, Gsm8kConfig)
    assert (found.data.path, found.data.shots) == (Path("/data/gsm8k"), 4)
    assert found.model.chat_template_kwargs == {"enable_thinking": False}
    assert (found.rollout.max_tokens, found.task.timeout_s, found.judge.workers) == (99, 7, 1)
    assert found.rollout.engine.max_num_seqs != 3  # that was for the machine it was trained on


def test_run_settings_apply_to_the_same_dataset_at_another_path(trained: Path) -> None:
    found = case(str(trained), "gsm8k=/other")
    assert isinstance(found.data, Gsm8kConfig)
    assert (found.data.path, found.data.shots, found.task.timeout_s) == (Path("/other"), 4, 7)
    other = case(str(trained), "functions")
    assert isinstance(other.task, CodeConfig)
    assert (other.data.name, other.task.language, other.model.chat_template_kwargs) == (
        *("functions", "python3"),
        {"enable_thinking": False},
    )


def test_options_and_overrides_take_precedence_over_the_run(trained: Path) -> None:
    options = Options(1, 0.0, 10, 55, 0, "cpu", "auto")
    found = case(str(trained), "", "data.shots=1", "model.chat_template_kwargs.enable_thinking=true", options=options)
    assert isinstance(found.data, Gsm8kConfig)
    assert (found.rollout.max_tokens, found.data.shots) == (55, 1)
    assert found.model.chat_template_kwargs == {"enable_thinking": True}
    shown = case(str(trained), shots=[8])
    assert isinstance(shown.data, Gsm8kConfig)
    assert shown.data.shots == 8


def test_an_environment_is_played_on_its_dataset_at_another_path_and_with_shots(tmp_path: Path) -> None:
    path, said = tmp_path / "mine.yaml", list[str]()
    path.write_text(
        "model: {name: dojang-tiny}\ndata: {name: gsm8k, path: /data/gsm8k}\ntask: {name: answer_line}\n"
        "workflow: {name: calculator, max_turns: 3}\n"
    )

    def workflow(data: str, *overrides: str, shots: Sequence[int] = ()) -> tuple[str, int | None]:
        found = case("dojang-tiny", data, *overrides, recipe=str(path), shots=shots, said=said).workflow
        return found.name, getattr(found, "max_turns", None)

    for found in (workflow(""), workflow("gsm8k=/other"), workflow("gsm8k=/other", shots=[2])):
        assert found == ("calculator", 3)
    assert workflow("arithmetic", "workflow.name=calculator") == ("calculator", 8)
    assert not said
    assert workflow("arithmetic") == ("single_turn", None)
    assert said == ["arithmetic: answered in one turn; workflow.name=calculator plays the environment"]


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("{name: files, train: a.jsonl, test: a.jsonl}", "b.jsonl"),
        ("{name: reasoning_gym, generators: {maze: {}}}", "reasoning_gym=chain_sum"),
        ("{name: gsm8k, path: /data}", "arithmetic"),
    ],
)
def test_other_datasets_of_the_same_kind_are_answered_in_one_turn(
    own: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("{}")
    path, said = tmp_path / "mine.yaml", list[str]()
    task = "reasoning_gym" if "reasoning_gym" in own else "answer_line"
    path.write_text(f"model: {{name: dojang-tiny}}\ndata: {own}\ntask: {{name: {task}}}\nworkflow: {{name: retry}}\n")
    assert case("dojang-tiny", recipe=str(path), said=said).workflow.name == "retry"
    assert not said
    assert case("dojang-tiny", other, recipe=str(path), said=said).workflow.name == "single_turn"
    assert [each.partition(": ")[2] for each in said] == [
        "answered in one turn; workflow.name=retry plays the environment"
    ]
    others = ("data={name: arithmetic}", "task={name: answer_line}")
    assert case("dojang-tiny", "", *others, recipe=str(path), said=said).workflow.name == "single_turn"
    assert len(said) == 2


def test_recipe_gives_the_dataset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "model: {name: org/other, chat_template_kwargs: {enable_thinking: false}}\ndata: {name: tiny_programs}\n"
        "task: {name: code, language: python3, reward_shape: all_or_nothing, max_tests: 7, max_cpu_s: 0.5}\n"
        "rollout: {max_tokens: 77, engine: {max_num_seqs: 5}}\neval: {samples: 4, temperature: 1.0}\nruntime: ray\n"
    )
    found = case("dojang-tiny-code", recipe=str(path))
    assert (found.model.name, found.model.chat_template_kwargs) == ("dojang-tiny-code", {"enable_thinking": False})
    assert (found.rollout.max_tokens, found.rollout.engine.max_num_seqs, found.runtime.name) == (77, 5, "local")
    assert isinstance(found.task, CodeConfig)
    assert (found.task.reward_shape, found.task.max_tests, found.task.max_cpu_s) == ("all_or_nothing", None, None)
    assert case("dojang-tiny-code", "", "rollout.max_tokens=8", recipe=str(path)).rollout.max_tokens == 8


def test_benchmarks_run_all_tests_by_default(tmp_path: Path) -> None:
    def most(*overrides: str) -> int | None:
        task = case("dojang-tiny", "functions", *overrides).task
        assert isinstance(task, CodeConfig)
        return task.max_tests

    assert most() is None
    assert most("task.max_tests=5") == 5
    assert CodeConfig().max_tests == 50  # while training


def test_no_dataset_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no dataset to evaluate on; give --data NAME or FILE, --recipe R"):
        case("dojang-tiny")


def test_adapter_names_its_base_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    assert find_subject(str(tmp_path), "").trained_from == "org/base"
    assert find_subject("dojang-tiny", "").trained_from == ""

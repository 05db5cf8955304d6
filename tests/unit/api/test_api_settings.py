"""Arguments of the Python API become the settings of a run."""

import json
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dojang.api.settings import data_tree, make_config, rewards_tree
from dojang.core.errors import ConfigError, DataError
from dojang.core.section import load_object

SELF: dict[str, Any] = {"prompt": "x"}
SELF["inner"] = SELF
ROWS = [{"prompt": f"{a}?", "answer": a} for a in range(30)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOJANG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def polite(completions: list[str], **_: Any) -> list[float]:
    return [float("please" in each) for each in completions]


def test_rows_are_kept_for_a_resumed_run(cache: Path) -> None:
    tree = data_tree(ROWS)
    assert tree["name"] == "files"
    assert "answer" not in tree
    assert [json.loads(line) for line in Path(tree["train"]).read_text().splitlines()] == ROWS
    assert data_tree(list(ROWS)) == tree
    assert len(list((cache / "datasets").iterdir())) == 1


def test_a_single_row_is_evaluated_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="one row"):
        single = data_tree(ROWS[:1])
    assert single["test"] == single["train"]
    assert "test" not in data_tree(ROWS[:2])


def test_dates_and_decimals_become_text() -> None:
    rows = [{"prompt": "x", "answer": 1, "day": date(2026, 1, 2), "price": Decimal("1.10")}] * 2
    first = json.loads(Path(data_tree(rows)["train"]).read_text().splitlines()[0])
    assert (first["day"], first["price"]) == ("2026-01-02", "1.10")


def test_rows_without_answers_have_no_reference() -> None:
    assert data_tree([{"prompt": "Be polite."}] * 2)["answer"] == ""


def test_a_dataset_may_be_a_path_a_name_or_a_section() -> None:
    assert data_tree("rows.jsonl") == {"name": "files", "train": "rows.jsonl"}
    assert data_tree("arithmetic") == {"name": "arithmetic"}
    assert data_tree({"name": "arithmetic", "digits": 3}) == {"name": "arithmetic", "digits": 3}


def test_a_misspelt_dataset_name_is_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"dataset='aritmetic' is neither .* Did you mean 'arithmetic'\?"):
        data_tree("aritmetic")
    with pytest.raises(ConfigError, match=r"nor a path that exists\. Give rows, a file"):
        data_tree("xyz")
    (tmp_path / "xyz").mkdir()
    assert data_tree("xyz")["train"] == "xyz"
    assert data_tree("org/name")["train"] == "org/name"


def test_errors_name_the_row_of_the_argument_not_a_file_of_the_cache() -> None:
    rows = [*ROWS, {"answer": 1}]
    for given, argument in (({"dataset": rows}, "dataset"), ({"dataset": ROWS, "eval_dataset": rows}, "eval_dataset")):
        config = make_config(None, model="dojang-tiny", task="answer_line", **given)
        with pytest.raises(DataError, match=f"^row {len(ROWS)} of the {argument}: the row has no column 'question'"):
            config.data.load("test")
    with pytest.raises(DataError, match="row 0 of the eval_dataset is a int"):
        data_tree(ROWS, [1])


def test_a_value_that_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="row 0 of the dataset: JSON cannot hold the column 'answer'"):
        data_tree([{"prompt": "x", "answer": {1, 2}}])


def test_functions_without_a_module_get_a_name_that_loads() -> None:
    def local(completions: list[str]) -> list[float]:
        return [1.0 for _ in completions]

    names = rewards_tree([local, lambda completions: [0.0], "mine:other"], [1.0, 2.0, 0.5])
    (first, _), (second, _), (third, weight) = names.items()
    assert load_object(first, "task.rewards") is local
    assert load_object(second, "task.rewards")(completions=["x"]) == [0.0]
    assert (third, weight) == ("mine:other", 0.5)


def test_reward_functions_of_one_name_get_different_names() -> None:
    def make(value: float) -> Any:
        def reward(completions: list[str]) -> list[float]:
            return [value for _ in completions]

        return reward

    names = rewards_tree([make(0.0), make(1.0)], None)
    assert [load_object(name, "")(["x"]) for name in names] == [[0.0], [1.0]]


def test_a_function_of_another_process_is_explained() -> None:
    with pytest.raises(ConfigError, match="given as a Python object by the program that started the run"):
        load_object("dojang.core.in_process:nosuch", "task.rewards")


@pytest.mark.parametrize(
    ("functions", "weights", "words"),
    [
        ([], None, "reward_funcs is empty"),
        ([polite], [1.0, 2.0], "1 reward_funcs but 2 reward_weights"),
        ([polite], 1.0, "reward_weights=1.0 is not a list"),
        ([polite, polite], None, "twice"),
        ([7], None, "neither a function nor a text"),
        ([polite], "1", "reward_weights='1' is not a list"),
    ],
)
def test_wrong_reward_functions_are_refused(functions: Any, weights: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        rewards_tree(functions, weights)


def test_arguments_become_settings() -> None:
    config = make_config(
        None,
        model="dojang-tiny",
        dataset=ROWS,
        reward_funcs=polite,
        algo="dapo",
        steps=7,
        train={"lr": 2e-5},
        overrides=["rollout.group_size=6"],
    )
    assert (config.model.name, config.task.name, config.algo.name, config.steps) == (
        "dojang-tiny",
        "reward_functions",
        "dapo",
        7,
    )
    assert (config.train.lr, config.rollout.group_size) == (2e-5, 6)


def test_arguments_change_a_recipe() -> None:
    config = make_config("quickstart", steps=3, train={"lr": 1e-5}, algo="gspo")
    assert (config.steps, config.train.lr, config.train.warmup_steps, config.algo.name) == (3, 1e-5, 2, "gspo")
    assert make_config(config).model_dump() == config.model_dump()


def test_reward_functions_join_the_task_that_is_named() -> None:
    config = make_config("quickstart", reward_funcs=[polite, "correct"], reward_weights=[0.5, 1.0])
    assert config.task.name == "reward_functions"
    config = make_config("quickstart", task="answer_line", reward_funcs=["format", "correct"])
    assert config.task.name == "answer_line"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dataset": ROWS}, "dojang.train needs model=NAME"),
        ({"model": "dojang-tiny"}, "dojang.train needs dataset=ROWS"),
        ({"model": "dojang-tiny", "eval_dataset": ROWS}, "eval_dataset needs a dataset"),
        ({"model": "dojang-tiny", "dataset": ROWS, "reward_weights": [1.0]}, "reward_weights needs reward_funcs"),
        ({"model": "dojang-tiny", "dataset": ROWS, "trian": {"lr": 1}}, "trian: no such key; did you mean train"),
        ({"model": "dojang-tiny", "dataset": ROWS, "train": {"lr": "fast"}}, "train.lr"),
        ({"model": "dojang-tiny", "dataset": [1, 2]}, "row 0 of the dataset is a int"),
        ({"model": "dojang-tiny", "dataset": [{"prompt": "\ud800"}]}, "row 0 of the dataset: JSON cannot hold the col"),
        ({"model": "dojang-tiny", "dataset": [SELF]}, "row 0 of the dataset contains itself"),
        ({"model": "dojang-tiny", "dataset": ROWS, "overrides": [3]}, "is not a list of texts"),
        ({"model": "dojang-tiny", "dataset": ROWS, "overrides": {"train.lr": 1}}, "is not a list of texts"),
        ({"model": "dojang-tiny", "dataset": ROWS, "reward_funcs": 3}, "neither a function nor a list of functions"),
        ({"model": "dojang-tiny", "dataset": "arithmetic", "eval_dataset": ROWS}, "has its own held-out problems"),
    ],
)
def test_wrong_arguments_say_what_to_do(arguments: dict[str, Any], words: str) -> None:
    from dojang.core.errors import DojangError

    with pytest.raises(DojangError, match=words):
        make_config(None, **arguments)


def test_functions_of_this_process_cannot_grade_on_ray() -> None:
    with pytest.raises(ConfigError, match="put it into a module"):
        make_config(
            None,
            model="dojang-tiny",
            dataset=ROWS,
            reward_funcs=lambda completions: [0.0 for _ in completions],
            runtime={"name": "ray"},
        )

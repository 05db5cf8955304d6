"""Arguments of the API -> the tree of settings that RunConfig validates."""

import copy
import json
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import Any

from dojang.api.result import RunResult
from dojang.config import recipe as recipes
from dojang.config.eval_config import GRADED_BY
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.in_process import in_process, register
from dojang.core.paths import writable
from dojang.core.run_dir import RunDir, write_atomic
from dojang.data.in_memory import cached_file, to_rows
from dojang.data.place import ACCEPTED, KINDS

__all__ = [
    "Dataset",
    "RewardFunction",
    "Source",
    "check_whole",
    "data_tree",
    "listed_functions",
    "make_config",
    "model_of",
    "rewards_tree",
]

RewardFunction = str | Callable[..., Any]
"""A reward function: a Python callable, package.module:function, or the name of a built-in one."""
Source = str | Path | Mapping[str, Any] | RunConfig
"""A recipe's name, a YAML file, a tree of settings, or a RunConfig."""
Dataset = object
"""Rows (a list of dicts, a DataFrame, a Table, a datasets.Dataset), a path, a hub id, the name of a dataset of dojang,
or its section of a recipe."""


def make_config(
    source: Source | None,
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    dataset: Dataset | None = None,
    eval_dataset: Dataset | None = None,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
    reward_weights: Sequence[float] | None = None,
    task: str | Mapping[str, Any] | None = None,
    algo: str | Mapping[str, Any] | None = None,
    steps: int | None = None,
    overrides: Sequence[str] = (),
    caller: str = "dojang.train",
    **sections: Any,
) -> RunConfig:
    """Validates the settings of a run; the arguments are those of `dojang.train`. Raises ConfigError with all mistakes;
    `caller` is the function's name in them."""
    tree = _read(source)
    given: dict[str, Any] = {
        "model": {"name": str(model)} if isinstance(model, str | Path) else model,
        "algo": {"name": algo} if isinstance(algo, str) else algo,
        "task": {"name": task} if isinstance(task, str) else task,
        "steps": steps,
    }
    if steps is not None:
        tree.pop("epochs", None)
    if dataset is not None:
        tree["data"], given["task"] = _data(dataset, eval_dataset, given["task"])
    elif eval_dataset is not None:
        raise ConfigError("eval_dataset needs a dataset to train on; give both")
    if reward_funcs is not None:
        rewards = rewards_tree(reward_funcs, reward_weights)
        given["task"] = {**(given["task"] or tree.get("task") or {"name": "reward_functions"}), "rewards": rewards}
    elif reward_weights is not None:
        raise ConfigError("reward_weights needs reward_funcs, one weight for each")
    for key, value in {**given, **sections}.items():
        if value is not None:
            tree[key] = _merged(tree.get(key), value)
    _check_complete(tree, overrides, caller)
    config = recipes.resolve(caller, tree, overrides)
    _check_places(config)
    return config


def _check_complete(tree: Mapping[str, Any], overrides: Sequence[str], caller: str) -> None:
    for key, wanted in (("model", "model=NAME"), ("data", "dataset=ROWS")):
        if key not in tree:
            raise ConfigError(
                f"{caller} needs {wanted}, or a recipe that names it: {', '.join(recipes.shipped()[:3])} ..."
            )
    if isinstance(overrides, str):
        raise ConfigError(f"overrides={overrides!r} is text; give a list, such as [{overrides!r}]")
    if not isinstance(overrides, Sequence) or not all(isinstance(each, str) for each in overrides):
        raise ConfigError(f"overrides={overrides!r:.80} is not a list of texts; give a list, such as ['train.lr=1e-5']")


def data_tree(dataset: Dataset, test: Dataset | None = None) -> dict[str, Any]:
    """Returns the `data` section of a dataset. Rows in memory are written to the cache: a resumed run needs them."""
    named = {"name": dataset} if isinstance(dataset, str) and dataset in GRADED_BY else dataset
    if isinstance(named, Mapping) and "name" in named:
        if test is not None:
            raise ConfigError(f"eval_dataset cannot be used: the dataset {named['name']} has its own held-out problems")
        return dict(named)
    tree: dict[str, Any] = {"name": "files"}
    if isinstance(dataset, str | Path):
        _check_name(str(dataset))
        tree["train"] = str(dataset)
    else:
        rows = to_rows(dataset)
        tree["train"] = str(_write(rows, "dataset"))
        if not any("answer" in row or "reward_model" in row for row in rows):
            tree["answer"] = ""
        if test is None and len(rows) == 1:
            warnings.warn("the dataset has one row: it is evaluated, too, since none can be held out", stacklevel=4)
            tree["test"] = tree["train"]
    if test is not None:
        name = "eval_dataset"
        tree["test"] = str(test if isinstance(test, str | Path) else _write(to_rows(test, name), name))
    return tree


def _check_name(dataset: str) -> None:
    """Raises ConfigError if a dataset is neither a path, an address nor a hub id, and so must be a misspelt name."""
    if "/" in dataset or KINDS.search(dataset) or Path(dataset).exists():
        return  # a path that does not exist is reported where it is read
    near = get_close_matches(dataset, GRADED_BY, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ConfigError(
        f"dataset={dataset!r} is neither a dataset of dojang ({', '.join(GRADED_BY)}) nor a path that exists.{hint} "
        f"Give rows, {ACCEPTED}"
    )


def check_whole(argument: str, value: object, least: int = 1) -> None:
    """Raises ConfigError unless an argument is a whole number of at least `least` that fits 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
        raise ConfigError(f"{argument}={value!r:.80} must be a whole number of at least {least}")


def model_of(model: str | Path) -> str | Path:
    """Returns the best, else the last, checkpoint of a run directory; any other model as it is."""
    if not isinstance(model, str | Path):
        raise ConfigError(f"model={model!r:.80} is neither a name nor a path of a model")
    if not RunDir(Path(model)).config.exists():
        return model
    return RunResult(Path(model)).best_model or model


def rewards_tree(
    functions: RewardFunction | Sequence[RewardFunction], weights: Sequence[float] | None
) -> dict[str, float]:
    """Returns the `task.rewards` of reward functions."""
    listed = listed_functions(functions)
    if weights is not None and (not isinstance(weights, Sequence) or isinstance(weights, str)):
        raise ConfigError(f"reward_weights={weights!r} is not a list; give one weight for each reward function")
    if weights is not None and len(weights) != len(listed):
        raise ConfigError(f"{len(listed)} reward_funcs but {len(weights)} reward_weights; give one weight for each")
    names = [each if isinstance(each, str) else register(each) for each in listed]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"reward_funcs has {', '.join(twice)} twice; give each function once")
    return dict(zip(names, weights or [1.0] * len(names), strict=True))


def listed_functions(functions: RewardFunction | Sequence[RewardFunction]) -> list[RewardFunction]:
    """Returns one or several reward functions as a list. Raises ConfigError unless each is a function or a name."""
    if not isinstance(functions, str | Iterable) and not callable(functions):
        raise ConfigError(f"reward_funcs={functions!r:.80} is neither a function nor a list of functions")
    listed = [functions] if isinstance(functions, str) or callable(functions) else list(functions)
    if not listed:
        raise ConfigError("reward_funcs is empty; give at least one function")
    for each in listed:
        if not isinstance(each, str) and not callable(each):
            raise ConfigError(
                f"reward_funcs has {each!r:.80}, which is neither a function nor a text such as package.module:function"
            )
    return listed


def _data(dataset: Dataset, test: Dataset | None, task: Any) -> tuple[dict[str, Any], Any]:
    """Returns the data section, and the task that grades it if that follows from the dataset."""
    data = data_tree(dataset, test)
    return data, task or GRADED_BY.get(data["name"])


def _read(source: Source | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, RunConfig):
        return recipes.to_tree(source)
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    return recipes.read(str(source))


def _merged(old: Any, new: Any) -> Any:
    """Merges two trees. A section whose name changes starts anew: the other choice has other settings."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return copy.deepcopy(new)
    if "name" in new and "name" in old and new["name"] != old["name"]:
        return copy.deepcopy(dict(new))
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


def _write(rows: Sequence[Mapping[str, Any]], argument: str) -> Path:
    """Writes the rows of an argument as JSON lines, in a folder named by their content."""
    content = "".join(_line(f"row {at} of the {argument}", row) for at, row in enumerate(rows)).encode()
    path = cached_file(argument, sha256(content).hexdigest()[:16])
    if not path.exists():
        with writable("the cache (DOJANG_CACHE)", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, content)
    return path


def _line(position: str, row: Mapping[str, Any]) -> str:
    for column, value in row.items():
        try:
            json.dumps(value, ensure_ascii=False, default=_text).encode()
        except (TypeError, ValueError) as error:  # also an unpaired surrogate
            raise ConfigError(
                f"{position}: JSON cannot hold the column {column!r} ({error}); convert it to text or numbers"
            ) from None
    return json.dumps(row, ensure_ascii=False, default=_text) + "\n"


def _text(value: Any) -> str:
    """Returns dates and times as ISO text, and decimal numbers as text."""
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"it is a {type(value).__name__}")


def _check_places(config: RunConfig) -> None:
    """Raises ConfigError if other machines would have to find a function of this process."""
    rewards = [name for name in getattr(config.task, "rewards", {}) if in_process(name)]
    if rewards and config.runtime.name == "ray":
        raise ConfigError(
            f"runtime=ray grades in other processes, which cannot import {rewards[0].rpartition(':')[2]!r}; put it "
            "into a module and give it as 'package.module:function'"
        )

"""Turns the command line of `dojang eval` into one RunConfig per dataset and number of shots.

Sources of settings, in increasing precedence: defaults, the recipe (or the run that trained MODEL), options, key=value.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dojang import models
from dojang.config.eval_config import GRADED_BY
from dojang.config.recipe import read, resolve
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.run_dir import LINKS, RunDir
from dojang.data.prepared import PreparedConfig
from dojang.evaluation.options import Options
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["Case", "Subject", "find_subject", "is_setting", "make_cases", "model_of", "numbers"]

DATASETS = tuple(sorted(GRADED_BY.keys() - {"episodes"}))  # which only environments play
_RUN_SETTINGS = ("max_tokens", "max_model_len")
"""Rollout settings taken over from the run; the others depend on the training machines."""
_MAX_TOKENS = 256
_ONE_TURN = ("single_turn", "coder_tester")
_WHICH = {"prepared": ("path",), "reasoning_gym": ("generators",), "verifiers": ("taskset",), "custom": ("load_with",)}
"""Settings that tell datasets of the same name apart."""

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to evaluate, and the settings it comes with."""

    path: str
    """Model name, hub id or directory; for a run, its best checkpoint."""
    trained_from: str = ""
    """Base model of the training, if known."""
    settings: Mapping[str, Tree] = field(default_factory=dict)
    """Sections model, data, task, judge, rollout and workflow of the recipe or the run."""


@dataclass(frozen=True, slots=True)
class Case:
    """One evaluation: a dataset and a number of shots."""

    data: str
    """Name of the dataset in the results."""
    shots: int | None
    config: RunConfig
    problems: Sequence[Problem] | None = None
    """Problems to evaluate, instead of those of config.data."""
    task: Task | None = None
    """Task that grades them, instead of config.task."""


def numbers(text: str) -> list[int]:
    """Parses `0,2,4,8`."""
    try:
        return [int(each) for each in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(f"--shots {text} must be comma-separated numbers, such as 0,2,4,8") from None


def is_setting(argument: str) -> bool:
    """Whether an argument is KEY=VALUE of a section, and not a model."""
    key, equals, _ = argument.partition("=")
    return bool(equals) and key.partition(".")[0] in RunConfig.model_fields and not Path(argument).exists()


def model_of(recipe: str, overrides: Sequence[str]) -> str:
    """Returns the model that an override names, or that of a recipe."""
    given = [value for key, _, value in (each.partition("=") for each in overrides) if key == "model.name"]
    name = given[-1] if given else _section(read(recipe), "model").get("name")
    if not name:
        raise ConfigError(f"{recipe} names no model; give a MODEL")
    return str(name)


def find_subject(name: str, recipe: str) -> Subject:
    """Finds the model that MODEL names, and the settings of the recipe or of the run it belongs to."""
    path, run = _checkpoint(name)
    run_settings = read(str(run / "config.yaml")) if run is not None else {}
    base = str(_section(run_settings, "model").get("name", "")) if run is not None else _adapter_base(path)
    settings = read(recipe) if recipe else run_settings
    sections = {key: _section(settings, key) for key in ("model", "data", "task", "judge", "rollout", "workflow")}
    if not recipe:
        sections["rollout"] = {key: sections["rollout"][key] for key in _RUN_SETTINGS if key in sections["rollout"]}
    return Subject(str(path) if path.is_dir() else name, base, {key: each for key, each in sections.items() if each})


def make_cases(
    subject: Subject,
    data: Sequence[str],
    shots: Sequence[int],
    options: Options,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> list[Case]:
    """Returns one case per dataset and number of shots. Without --data, uses the dataset that an override names
    (data.name=...), or that of the recipe or the run."""
    chosen = [_chosen(subject, each, say) for each in data] or [_own(subject, overrides)]
    counts: Sequence[int | None] = shots or [None]
    if not any(each.startswith(("workflow.name=", "workflow=")) for each in overrides):
        for label, found, _ in chosen:
            _say_one_turn(subject, label, _renamed("data", found, overrides), say)
    return [_case(subject, *each, count, options, overrides) for each in chosen for count in counts]


def _case(
    subject: Subject, label: str, data: Tree, task: Tree, shots: int | None, options: Options, overrides: Sequence[str]
) -> Case:
    data, task = _renamed("data", data, overrides), _renamed("task", task, overrides)
    if not task:
        task = dict(GRADED_BY.get(str(data.get("name")), {}))
    if shots is not None:
        if data.get("name") != "gsm8k":
            raise ConfigError(f"--shots is for gsm8k; {label} has no examples to show")
        data = {**data, "shots": shots}
    if task.get("name") == "code":
        # All tests, with their own limits: a program is wrong if it fails any of them.
        task = {**task, "max_tests": None, "max_cpu_s": None}
    temperature = float(options.samples > 1) if options.temperature is None else options.temperature
    model = {"name": subject.path, "device": options.device, "dtype": options.dtype}
    template = subject.settings.get("model", {}).get("chat_template_kwargs")
    rollout = {"max_tokens": _MAX_TOKENS, **subject.settings.get("rollout", {})}
    tree: Tree = {
        "model": {**model, **({"chat_template_kwargs": template} if template else {})},
        "data": data,
        "task": task,
        "judge": subject.settings.get("judge", {}),
        "rollout": {**rollout, **({"max_tokens": options.max_tokens} if options.max_tokens else {})},
        "seed": options.seed,
        "eval": {"samples": options.samples, "temperature": temperature, "problems": options.problems},
    }
    if _same_dataset(subject, data):
        tree |= _environment(subject)
    config = resolve(f"the evaluation on {label or data.get('name', 'the dataset')}", tree, overrides)
    if config.model.name != subject.path:
        raise ConfigError(f"model.name={config.model.name} is not the MODEL {subject.path}; give it as MODEL instead")
    return Case(label or config.data.name, shots, config)


def _same_dataset(subject: Subject, data: Tree) -> bool:
    """Whether a dataset is that of the recipe or the run; one with a name may be at another path."""
    own = subject.settings.get("data", {})
    if data.get("name") == "files" == own.get("name"):
        return data.get("test") in (own.get("train"), own.get("test"))
    keys = ("name", *_WHICH.get(str(data.get("name")), ()))
    return all(data.get(key) == own.get(key) for key in keys)


def _environment(subject: Subject) -> Tree:
    """Returns the workflow of the recipe or the run, if it is an environment; other workflows evaluate in one turn."""
    workflow = subject.settings.get("workflow", {})
    return {"workflow": workflow} if workflow.get("name", "single_turn") not in _ONE_TURN else {}


def _say_one_turn(subject: Subject, label: str, data: Tree, say: Callable[[str], None]) -> None:
    """Says that a dataset is evaluated without the environment of the recipe or the run."""
    environment = _environment(subject).get("workflow", {}).get("name")
    if environment and not _same_dataset(subject, data):
        name = label or data.get("name", "the dataset")
        say(f"{name}: answered in one turn; workflow.name={environment} plays the environment")


def _renamed(section: str, tree: Tree, overrides: Sequence[str]) -> Tree:
    """Drops the settings of a section whose name an override changes: they are those of another dataset or task."""
    for override in overrides:
        key, _, value = override.partition("=")
        if key == f"{section}.name" and value != tree.get("name"):
            return {"name": value}
        if key == section:
            return {}
    return tree


def _own(subject: Subject, overrides: Sequence[str]) -> tuple[str, Tree, Tree]:
    """Returns the dataset and the task of the overrides, the recipe or the run."""
    data, task = subject.settings.get("data", {}), subject.settings.get("task", {})
    if any(each.startswith(("data.name=", "data=")) for each in overrides):
        return "", data, task
    if not data:
        raise ConfigError(
            "no dataset to evaluate on; give --data NAME or FILE, --recipe R, or a run directory as MODEL"
        )
    label = data.get("path") if data.get("name") == "prepared" else data.get("name")
    return str(label), data, task


def _chosen(subject: Subject, text: str, say: Callable[[str], None]) -> tuple[str, Tree, Tree]:
    """Returns the dataset of one item of --data, and its task.

    Further settings of both come from the recipe or the run, if it has the same dataset or task.
    """
    name, _, place = text.partition("=")
    if name in DATASETS:
        if not place and Path(name).is_dir():
            say(f"--data {name} is the dataset {name}, not the folder of that name here; for that, write ./{name}")
        data, task = _known(name, place)
    elif Path(text).exists() and not _is_prepared(Path(text)):
        name = text
        data = {"name": "files", "train": text, "test": text}  # evaluates all rows
        task = {"name": subject.settings.get("task", {}).get("name", "answer_line")}
    elif Path(text).is_dir():
        name = text
        data = {"name": "prepared", "path": text}
        task = {"name": PreparedConfig(path=Path(text)).task_name("test")}
    else:
        raise ConfigError(
            f"--data {text} is neither {', '.join(DATASETS[:-1])} or {DATASETS[-1]}, nor a file of rows, nor a "
            "directory that `dojang data prepare` wrote"
        )
    own, grading = (subject.settings.get(key, {}) for key in ("data", "task"))
    same = own.get("name") == data["name"] and (data["name"] != "prepared" or str(own.get("path")) == text)
    if grading and grading.get("name") == task["name"]:
        task = {**grading, **task}
    elif grading and same:
        task = grading
    return name, {**own, **data} if same else data, task


def _is_prepared(path: Path) -> bool:
    """Whether a directory has the layout of `dojang data prepare`."""
    return path.is_dir() and ((path / "report.json").exists() or PreparedConfig(path=path).has("test"))


def _known(name: str, place: str) -> tuple[Tree, Tree]:
    if name == "reasoning_gym":
        generators: Tree = {each: {} for each in filter(None, place.split("+"))}
        return {"name": name, **({"generators": generators} if place else {})}, {"name": name}
    return {"name": name, **({"path": place} if place else {})}, dict(GRADED_BY[name])


def _checkpoint(name: str) -> tuple[Path, Path | None]:
    """Returns the directory of a model and of its run; for a run directory, its best checkpoint."""
    path = Path(name)
    for link in LINKS:
        if (path / "checkpoints" / link).exists():
            return path / "checkpoints" / link, _run(path)
    return path, _run(path.parent.parent) if path.parent.name == "checkpoints" else None


def _run(path: Path) -> Path | None:
    return path if RunDir(path).config.is_file() else None


def _adapter_base(path: Path) -> str:
    try:
        return str(json.loads((path / models.ADAPTER).read_text()).get("base_model_name_or_path", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def _section(tree: Tree, key: str) -> Tree:
    found = tree.get(key) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{key} must be a section with keys, not {found!r}")
    return found

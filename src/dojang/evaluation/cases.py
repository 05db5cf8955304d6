"""From the command line of `dojang eval` to one RunConfig per dataset and number of shots.

Settings come from, in this order: defaults, the recipe (or the run that MODEL was trained in), options, key=value.
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

__all__ = ["Case", "Options", "Subject", "find_subject", "make_cases", "numbers"]

DATASETS = tuple(sorted(GRADED_BY))
_OF_A_RUN = ("max_tokens", "max_model_len")
"""Rollout settings that a trained model is evaluated with; others belong to the machines it was trained on."""
_MAX_TOKENS = 512

Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line; None where the recipe or the run decides."""

    samples: int
    temperature: float
    problems: int
    max_tokens: int | None
    seed: int
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to evaluate, and the settings it comes with."""

    path: str
    """Model name, hub id or directory: for a run, its best checkpoint."""
    trained_from: str = ""
    """The model that training started from, if that is known."""
    settings: Mapping[str, Tree] = field(default_factory=dict)
    """Sections model, data, task, judge and rollout of the recipe or the run."""


@dataclass(frozen=True, slots=True)
class Case:
    """One evaluation: a dataset and a number of shots."""

    data: str
    shots: int | None
    config: RunConfig


def numbers(text: str) -> list[int]:
    """Parses `0,2,4,8`."""
    try:
        return [int(each) for each in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(f"--shots {text} must be numbers with commas between, such as 0,2,4,8") from None


def find_subject(name: str, recipe: str) -> Subject:
    """Finds the model that MODEL names, and the settings of the recipe or of the run it belongs to."""
    path, run = _checkpoint(name)
    told = read(str(run / "config.yaml")) if run is not None else {}
    base = str(_section(told, "model").get("name", "")) if run is not None else _adapter_base(path)
    settings = read(recipe) if recipe else told
    sections = {key: _section(settings, key) for key in ("model", "data", "task", "judge", "rollout")}
    if not recipe:
        sections["rollout"] = {key: sections["rollout"][key] for key in _OF_A_RUN if key in sections["rollout"]}
    return Subject(str(path) if path.is_dir() else name, base, {key: each for key, each in sections.items() if each})


def make_cases(
    subject: Subject,
    data: Sequence[str],
    shots: Sequence[int],
    options: Options,
    overrides: Sequence[str],
    say: Callable[[str], None],
) -> list[Case]:
    """One case per dataset and number of shots. Without --data, the recipe's or the run's own dataset."""
    chosen = [_chosen(subject, each, say) for each in data] or [_own(subject)]
    counts: Sequence[int | None] = shots or [None]
    return [_case(subject, *each, count, options, overrides) for each in chosen for count in counts]


def _case(
    subject: Subject, label: str, data: Tree, task: Tree, shots: int | None, options: Options, overrides: Sequence[str]
) -> Case:
    if shots is not None:
        if data.get("name") != "gsm8k":
            raise ConfigError(f"--shots is for gsm8k; {label} has no examples to show")
        data = {**data, "shots": shots}
    if task.get("name") == "code":
        task = {**task, "max_tests": None}  # a program that fails a test which was not drawn is wrong all the same
    model = {"name": subject.path, "device": options.device, "dtype": options.dtype}
    template = subject.settings.get("model", {}).get("chat_template_kwargs")
    rollout = {"max_tokens": _MAX_TOKENS, **subject.settings.get("rollout", {})}
    tree = {
        "model": {**model, **({"chat_template_kwargs": template} if template else {})},
        "data": data,
        "task": task,
        "judge": subject.settings.get("judge", {}),
        "rollout": {**rollout, **({"max_tokens": options.max_tokens} if options.max_tokens else {})},
        "seed": options.seed,
        "eval": {"samples": options.samples, "temperature": options.temperature, "problems": options.problems},
    }
    config = resolve(f"the evaluation on {label}", tree, overrides)
    if config.model.name != subject.path:
        raise ConfigError(f"model.name={config.model.name} is not the MODEL {subject.path}; give it as MODEL instead")
    return Case(label, shots, config)


def _own(subject: Subject) -> tuple[str, Tree, Tree]:
    """The dataset and the task that the recipe or the run names."""
    data = subject.settings.get("data")
    if not data:
        raise ConfigError(
            "no dataset to evaluate on; give --data NAME or --recipe R, or a run directory, which has a dataset"
        )
    label = data.get("path") if data.get("name") == "prepared" else data.get("name")
    return str(label), data, subject.settings.get("task", {})


def _chosen(subject: Subject, text: str, say: Callable[[str], None]) -> tuple[str, Tree, Tree]:
    """The dataset that one item of --data names, and the task that grades it.

    Further settings of both come from the recipe or the run where it has the same ones.
    """
    name, _, place = text.partition("=")
    if name in DATASETS:
        if not place and Path(name).is_dir():
            say(f"--data {name} is the dataset {name}, not the folder of that name here; for that, write ./{name}")
        data, task = _known(name, place)
    elif Path(text).is_dir():
        name = text
        data = {"name": "prepared", "path": text}
        task = {"name": PreparedConfig(path=Path(text)).grader("test")}
    else:
        raise ConfigError(
            f"--data {text} is neither {', '.join(DATASETS[:-1])} or {DATASETS[-1]} nor a directory that "
            "`dojang data prepare` has made"
        )
    own, grading = (subject.settings.get(key, {}) for key in ("data", "task"))
    same = own.get("name") == data["name"] and (data["name"] != "prepared" or str(own.get("path")) == text)
    if grading and grading.get("name") == task["name"]:
        task = {**grading, **task}
    elif grading and same:
        task = grading
    return name, {**own, **data} if same else data, task


def _known(name: str, place: str) -> tuple[Tree, Tree]:
    if name == "reasoning_gym":
        generators: Tree = {each: {} for each in filter(None, place.split("+"))}
        return {"name": name, **({"generators": generators} if place else {})}, {"name": name}
    return {"name": name, **({"path": place} if place else {})}, dict(GRADED_BY[name])


def _checkpoint(name: str) -> tuple[Path, Path | None]:
    """The directory of a model and of the run it belongs to; a run stands for its best checkpoint."""
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

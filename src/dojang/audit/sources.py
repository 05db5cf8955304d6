"""Reads the dataset to audit (prepared rows, a published dataset, or one that recipes name) and its known answers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dojang.build.prepare_dataset import DATASETS, make_dataset
from dojang.config.recipe import resolve
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError
from dojang.data.prepare_rows import Dataset, KnownAnswers, Unusable, make_problem
from dojang.data.prepared import PreparedConfig
from dojang.data.readers import File, find
from dojang.data.subsets import choose
from dojang.tasks.section import AuditableSection
from dojang.types import Problem

__all__ = ["SPLITS", "Item", "Source", "open_source"]

SPLITS = ("train", "validation", "test")
_TASKS: Mapping[str, Mapping[str, str]] = {
    "gsm8k": {"name": "answer_line"},
    "arithmetic": {"name": "answer_line"},
    "functions": {"name": "code", "language": "python3"},
    "files": {},
    "custom": {},
}
"""Datasets that recipes name, and their tasks."""


@dataclass(frozen=True, slots=True)
class Item:
    """A problem to audit."""

    problem: Problem
    split: str
    row: int
    """Index of the row in its split."""
    known: KnownAnswers = field(default_factory=KnownAnswers)


@dataclass(frozen=True, slots=True)
class Source:
    """A whole dataset with its task and judge."""

    name: str
    items: Sequence[Item]
    config: RunConfig
    """Configuration of task and judge."""
    ability: str
    folder: Path | None = None
    """Folder of the rows, if they are prepared rows."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of skipped rows, by reason."""


def open_source(name: str, place: str, settings: Sequence[str], task: str = "") -> Source:
    """Opens a dataset. `place` is the location of a published dataset; for prepared rows, of their solutions."""
    if name in DATASETS and place:
        return _published(name, place, settings, task)
    if Path(name).is_dir():
        return _prepared(Path(name), place, settings, task)
    if name in _TASKS:
        return _own(name, place, settings, task)
    if name in DATASETS:
        raise ConfigError(f"{name} needs the place of the dataset: give --input PLACE, or a directory of prepared rows")
    if Path(name).is_file():
        raise ConfigError(
            f"{name} is a file; audit its rows with `dojang data audit files data.train={name} --task TASK`"
        )
    raise ConfigError(
        f"{name} is neither a directory of prepared rows nor a dataset; known: {', '.join((*DATASETS, *_TASKS))}"
    )


def _published(name: str, place: str, settings: Sequence[str], task: str) -> Source:
    own = [each.removeprefix("data.") for each in settings if each.startswith("data.")]
    dataset, dropped = make_dataset(name, own), Counter[str]()
    graded_by = {"name": task or ("code" if dataset.ability == "code" else "maths")}
    others = [each for each in settings if not each.startswith("data.")]
    config = _config(name, {"name": "arithmetic"}, graded_by, others)  # data section required, but not used
    rows, seen = Counter[str](), set[str]()
    items = []
    for file, number, row in _rows(choose(find(place), (), dataset)[0]):
        try:
            split, problem = make_problem(dataset, file, row, number)
            if problem.id in seen:
                raise Unusable("its id is a duplicate")
        except Unusable as why:
            dropped[str(why)] += 1
            continue
        seen.add(problem.id)
        items.append(Item(problem, split, rows[split], _known(dataset, row)))
        rows[split] += 1
    return Source(name, items, config, dataset.ability, dropped=dropped)


def _prepared(folder: Path, place: str, settings: Sequence[str], task: str) -> Source:
    rows = PreparedConfig(path=folder)
    splits = [split for split in SPLITS if rows.has(split)]
    if not splits:
        raise DataError(f"{folder} has no rows of problems: no train/*.parquet, train.parquet, test.parquet ...")
    graded_by = {"name": task or rows.task_name(splits[0])}
    config = _config(str(folder), {"name": "prepared", "path": str(folder)}, graded_by, settings)
    assert isinstance(config.data, PreparedConfig)
    items = [
        Item(problem, split, number)
        for split in splits
        for number, problem in enumerate(rows.all(split))
        if config.data.includes(problem)
    ]
    if place:
        items = list(_with_known(items, place))
    return Source(str(folder), items, config, _ability(config), folder)


def _own(name: str, place: str, settings: Sequence[str], task: str) -> Source:
    data = {"name": name, **({"path": place} if place else {})}
    graded_by = {**_TASKS[name], **({"name": task} if task else {})}
    if not graded_by:
        raise ConfigError(f"{name} has no default task; give --task code, maths or answer_line")
    config = _config(name, data, graded_by, settings)
    items = [
        Item(problem, split, number)
        for split in ("train", "test")
        for number, problem in enumerate(config.data.load(split))
    ]
    return Source(name, items, config, _ability(config))


def _ability(config: RunConfig) -> str:
    return "code" if config.task.runs_programs else "math"


def _config(name: str, data: dict[str, Any], task: Mapping[str, str], settings: Sequence[str]) -> RunConfig:
    for each in settings:
        if not each.startswith(("data.", "task.", "judge.")):
            raise ConfigError(f"{each!r}: settings of an audit begin with data., task. or judge.")
    tree = {"model": {"name": "dojang-tiny"}, "data": data, "task": dict(task)}
    config = resolve(name, tree, settings)
    if not (config.task.runs_programs or isinstance(config.task, AuditableSection)):
        raise ConfigError(
            f"task.name={config.task.name} cannot be audited, since the form of its answers is unknown; "
            "code, maths and answer_line can"
        )
    return config


def _with_known(items: Sequence[Item], place: str) -> Iterator[Item]:
    """Adds solutions, looked up by problem id in the datasets that the rows name as their source."""
    names = {each.problem.source for each in items}
    known = [name.replace("_", "-") for name in sorted(names) if name.replace("_", "-") in DATASETS]
    if not known:
        raise ConfigError(
            f"--input: solutions are available for {', '.join(DATASETS)}, but these rows are from {sorted(names)}"
        )
    solutions: dict[str, KnownAnswers] = {}
    for dataset in (make_dataset(name, []) for name in known):
        solutions.update(_solutions(dataset, place))
    for item in items:
        name = item.problem.id
        found = solutions.get(name) or solutions.get(f"{item.problem.source}/{name}") or KnownAnswers()
        yield Item(item.problem, item.split, item.row, found)


def _solutions(dataset: Dataset, place: str) -> Iterator[tuple[str, KnownAnswers]]:
    for file, number, row in _rows(find(place)):
        try:
            yield make_problem(dataset, file, row, number)[1].id, _known(dataset, row)
        except Unusable:
            continue


def _known(dataset: Dataset, row: Mapping[str, Any]) -> KnownAnswers:
    try:
        return dataset.known(row)
    except (KeyError, TypeError, ValueError):  # rows with missing or malformed solutions
        return KnownAnswers()


def _rows(files: Sequence[File]) -> Iterator[tuple[File, int, dict[str, Any]]]:
    for file in files:
        for number, row in file.rows():
            yield file, number, row

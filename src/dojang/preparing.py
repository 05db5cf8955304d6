"""`dojang data prepare`: a dataset by its name, from where it is to where it is wanted."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dojang.data.code_contests import CodeContests
from dojang.data.deepcoder import Codeforces, DeepCoder
from dojang.data.deepmath import DeepMath
from dojang.data.humaneval import HumanEval
from dojang.data.livecodebench import LiveCodeBench
from dojang.data.math500 import Math500
from dojang.data.mbpp import Mbpp
from dojang.data.prepare import Dataset, Report
from dojang.data.prepare import prepare as write
from dojang.data.reading import find
from dojang.errors import ConfigError, DataError

__all__ = ["DATASETS", "make_dataset", "prepare"]

DATASETS: Mapping[str, Any] = {
    "code-contests": CodeContests,
    "codeforces": Codeforces,
    "deepcoder": DeepCoder,
    "deepmath": DeepMath,
    "humaneval": HumanEval,
    "livecodebench": LiveCodeBench,
    "math500": Math500,
    "mbpp": Mbpp,
}


def prepare(name: str, where: str, output: Path, settings: Sequence[str], held_out: float) -> None:
    """Write the rows, showing how far it is, and say what was kept and what was not."""
    dataset = make_dataset(name, settings)
    files = find(where)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("files"))
    with Progress(*columns, TextColumn("{task.fields[rows]:,} rows"), TimeElapsedColumn()) as progress:
        bar = progress.add_task(name, total=len(files), rows=0)

        def tell(done: int, rows: int) -> None:
            progress.update(bar, completed=done, rows=rows)

        try:
            report = write(dataset, files, output, held_out=held_out, tell=tell)
        except OSError as error:
            raise DataError(f"{output} cannot be written: {error}") from error
    _print(report, output)


def make_dataset(name: str, settings: Sequence[str]) -> Dataset:
    """A dataset by its name, with key=value settings."""
    if name not in DATASETS:
        near = get_close_matches(name, DATASETS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"there is no dataset {name!r}; {hint}There are {', '.join(DATASETS)}")
    given = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{setting!r} must have the form key=value")
        try:
            given[key] = yaml.safe_load(value)
        except (yaml.YAMLError, ValueError) as error:
            raise ConfigError(f"{setting!r} cannot be understood: {error}") from None
    try:
        dataset: Dataset = DATASETS[name].model_validate(given)
    except ValidationError as error:
        known = ", ".join(DATASETS[name].model_fields) or "none"
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"settings of {name}: {said}. There are: {known}") from None
    return dataset


def _print(report: Report, output: Path) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    table.add_row(f"{report.read:,}", "rows read")
    for split, count in report.kept.items():
        table.add_row(f"{count:,}", f"problems in {output / split}")
    for tier, count in report.tiers.items():
        table.add_row(f"{count:,}", f"of the tier {tier}")
    for reason, count in report.dropped.most_common():
        table.add_row(f"{count:,}", f"dropped: {reason}")
    Console().print(table, markup=False, highlight=False)
    Console().print(f"train on them with data.name=prepared data.path={output}", markup=False, highlight=False)

"""`dojang data prepare`: converts a dataset to rows for training or evaluation."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from dojang.build.multiple_answers import has_multiple_answers
from dojang.config.overrides import parse_value
from dojang.core.errors import ConfigError, DataError
from dojang.core.progress import ProgressBars
from dojang.data.code_contests import CodeContests
from dojang.data.deepcoder import Codeforces, DeepCoder
from dojang.data.deepmath import DeepMath
from dojang.data.gsm8k import Gsm8kConfig
from dojang.data.gsm8k_files import Gsm8kFiles
from dojang.data.humaneval import HumanEval
from dojang.data.livecodebench import LiveCodeBench
from dojang.data.math500 import Math500
from dojang.data.mbpp import Mbpp
from dojang.data.prepare_rows import Dataset, Report, Unusable, make_problem
from dojang.data.prepare_rows import prepare as write
from dojang.data.prepared import PreparedConfig
from dojang.data.readers import find
from dojang.data.subsets import choose
from dojang.tasks.code import CodeConfig
from dojang.types import Problem

__all__ = ["DATASETS", "Options", "make_dataset", "prepare", "read_held_out"]

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
GSM8K = "gsm8k"
"""Prepared as gsm8k's own files, not as rows."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of preparing a dataset, besides the dataset's own settings."""

    held_out: float = 0.0
    """Share of the training problems that becomes the test split."""
    subsets: Sequence[str] = ()
    """Directories of the dataset to read; its default ones if empty."""
    against: Sequence[str] = ()
    """Held-out sets: directories of prepared rows, or NAME=PATH."""
    keep_overlap: bool = False
    """Report training problems that overlap with held-out ones, and keep them."""


def prepare(name: str, where: str, output: Path, settings: Sequence[str], options: Options) -> None:
    """Writes the rows with a progress bar, and prints the numbers of kept and dropped rows."""
    if name == GSM8K:
        return _prepare_gsm8k(where, output, settings, options)
    dataset = make_dataset(name, settings)
    files, left_out = choose(find(where), options.subsets, dataset)
    against = {each: read_held_out(each) for each in options.against}
    with ProgressBars() as bars:

        def tell(done: int, rows: int) -> None:
            bars.update(name, done, len(files), f"files, {rows:,} rows")

        try:
            report = write(
                dataset,
                files,
                output,
                held_out=options.held_out,
                against=against,
                keep_overlap=options.keep_overlap,
                on_progress=tell,
                suspected=partial(has_multiple_answers, CodeConfig(tests="all"))
                if dataset.ability == "code"
                else lambda problem: False,
            )
        except OSError as error:
            raise DataError(f"cannot write {output}: {error}") from error
    _print(report, output, left_out)


def _prepare_gsm8k(where: str, output: Path, settings: Sequence[str], options: Options) -> None:
    if settings or options.held_out or options.against:
        raise ConfigError(
            "gsm8k is prepared as published: it takes no settings, no --held-out (set data.validation=0.1 for a run) "
            "and no --against"
        )
    dataset = Gsm8kFiles()
    files, _ = choose(find(where), options.subsets, dataset)
    try:
        report = dataset.write(files, output)
    except OSError as error:
        raise DataError(f"cannot write {output}: {error}") from error
    _print(report, output, (), trained_on=f"data.name=gsm8k data.path={output}")


def read_held_out(place: str) -> list[Problem]:
    """Problems of an evaluation set: the test split of prepared rows or of NAME=PATH; all problems without one."""
    folder = Path(place)
    if folder.is_dir():
        rows = PreparedConfig(path=folder)
        return rows.read("test" if rows.has("test") else "train")
    name, equals, where = place.partition("=")
    if not equals:
        raise ConfigError(f"--against {place} is not a directory of prepared rows; give one, or NAME=PATH")
    if name == GSM8K:
        return Gsm8kConfig(path=Path(where)).read("test")
    dataset = make_dataset(name, [])
    found: dict[str, list[Problem]] = {}
    for file in choose(find(where), (), dataset)[0]:
        for number, row in file.rows():
            with suppress(Unusable):
                split, problem = make_problem(dataset, file, row, number)
                found.setdefault(split, []).append(problem)
    problems = found.get("test") or [each for some in found.values() for each in some]
    if not problems:
        raise DataError(f"--against {place} has no problems")
    return problems


def make_dataset(name: str, settings: Sequence[str]) -> Dataset:
    """Makes a dataset from its name and key=value settings."""
    if name not in DATASETS:
        near = get_close_matches(name, [*DATASETS, GSM8K], n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown dataset {name!r}; {hint}Known: {', '.join(sorted([*DATASETS, GSM8K]))}")
    given = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{setting!r} must have the form key=value")
        field = DATASETS[name].model_fields.get(key)
        given[key] = parse_value(value, field.annotation if field else None)
    try:
        dataset: Dataset = DATASETS[name].model_validate(given)
    except ValidationError as error:
        known = ", ".join(DATASETS[name].model_fields) or "none"
        said = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"settings of {name}: {said}. Known: {known}") from None
    return dataset


def _print(report: Report, output: Path, left_out: Sequence[str], trained_on: str = "") -> None:
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
    if report.overlap and not any("overlaps" in reason for reason in report.dropped):
        table.add_row(f"{len(report.overlap):,}", "kept, though they overlap with held-out problems (report.json)")
    if report.multiple_answers:
        said = "training problems may have several right answers; data.filter_multiple_answers=true leaves them out"
        table.add_row(f"{len(report.multiple_answers):,}", said)
    Console().print(table, markup=False, highlight=False)
    if left_out:
        said = f"not read: {', '.join(left_out)}, evaluation sets; --subset {left_out[0]} prepares one as a test split"
        Console().print(said, markup=False, highlight=False)
    if report.kept["train"]:
        said = f"train on them with {trained_on or f'data.name=prepared data.path={output}'}"
    else:
        said = f"evaluate on them with dojang eval MODEL --data {f'gsm8k={output}' if trained_on else output}"
    Console().print(said, markup=False, highlight=False)

"""Chooses samples of a run: by step, outcome, problem and role, in an order.

Samples are chosen by their short columns; only the texts of those chosen are read.
"""

from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dojang.core.errors import ConfigError, RunDirError
from dojang.core.safe_text import one_line
from dojang.types import Outcome
from dojang.viewer.options import ShowOptions, Sort
from dojang.viewer.records import SHORT_COLUMNS, RunRecords

__all__ = ["Row", "check_step", "find_samples", "kind_of", "matching", "ordered", "step_of", "with_texts"]

Row = dict[str, Any]
"""A sample by column, with its length in tokens, and its place among the rows that match."""
TEXTS = ("question", "response", "detail", "tests")


def find_samples(records: RunRecords, options: ShowOptions) -> list[Row]:
    """Samples that the options choose, with texts, at most `options.limit`."""
    kind = kind_of(records, options)
    step = step_of(records, kind, options)
    rows = ordered(matching(records, kind, step, options), options.sort)
    return with_texts(records, kind, step, options, rows[: options.limit])


def kind_of(records: RunRecords, options: ShowOptions) -> str:
    """Kind of rollouts: train, test or test-NAME."""
    kinds = records.kinds
    kind = f"test-{options.benchmark}" if options.benchmark else "test" if options.evaluation else "train"
    if kind in kinds:
        return kind
    benchmarks = [each.removeprefix("test-") for each in kinds if each.startswith("test-")]
    if options.benchmark:
        raise ConfigError(
            f"{records.path} has no samples of a benchmark {options.benchmark!r}; there are "
            f"{', '.join(benchmarks) or 'none (eval.benchmarks)'}"
        )
    found = {"train": "training (without --eval)", "test": "evaluations (--eval)"}
    there = [found[each] for each in kinds if each in found] + [f"--benchmark {name}" for name in benchmarks]
    wanted = "evaluations" if options.evaluation else "training"
    raise RunDirError(f"{records.path} has no samples of {wanted} yet; there are {', '.join(there) or 'none at all'}")


def step_of(records: RunRecords, kind: str, options: ShowOptions) -> int:
    """The step asked for; else the last one that has samples, of the problem if one is asked for."""
    steps = records.steps(kind)
    if options.step is not None:
        check_step(records, kind, options.step)
        return options.step
    where = pc.field("problem") == options.problem if options.problem else None
    for step in reversed(steps):
        if any(batch.num_rows for batch in records.rollouts(kind, [step], ["problem"], where)):
            return step
    if not options.problem:
        raise RunDirError(f"no step of {records.path} has samples that can be read" + _because(records))
    raise ConfigError(_no_problem(records, kind, steps[-20:], options.problem))


def check_step(records: RunRecords, kind: str, step: int) -> None:
    """Raises an error for a step without samples; it names the nearest steps."""
    steps = records.steps(kind)
    if step in steps:
        return
    near = sorted(sorted(steps, key=lambda each: abs(each - step))[:3])
    others = [each for each in records.kinds if step in records.steps(each)]
    hint = {"test": "; evaluations do: add --eval", "train": "; training does: leave --eval out"}
    raise ConfigError(
        f"step {step} has no samples of {_name(kind)}; the nearest that have are {', '.join(map(str, near))} "
        f"({len(steps)} steps from {steps[0]} to {steps[-1]})" + (hint.get(others[0], "") if others else "")
    )


def matching(records: RunRecords, kind: str, step: int, options: ShowOptions) -> list[Row]:
    """Short columns of the samples of a step that match; raises an error that lists what there is, if none does."""
    rows: list[Row] = []
    for batch in records.rollouts(kind, [step], SHORT_COLUMNS, _where(options)):
        rows += _rows(batch, len(rows))
    if not rows:
        _explain_none(records, kind, step, options)
    return rows


def ordered(rows: Sequence[Row], sort: Sort | None) -> list[Row]:
    """Rows in an order; those without a value, such as rewards of samples that could not be judged, come last."""
    if sort is None:
        return list(rows)
    name, sign = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
    return sorted(rows, key=lambda row: (row[name] is None, sign * (row[name] or 0)))


def with_texts(records: RunRecords, kind: str, step: int, options: ShowOptions, rows: Sequence[Row]) -> list[Row]:
    """The same rows with question, response, detail, and results of tests."""
    wanted = {row["place"] for row in rows}
    texts: dict[int, Row] = {}
    first = 0
    for batch in records.rollouts(kind, [step], TEXTS, _where(options)):
        places = [place for place in range(first, first + batch.num_rows) if place in wanted]
        picked = batch.take(pa.array([place - first for place in places], pa.int64()))
        texts |= dict(zip(places, _rows(picked, 0), strict=True))
        first += batch.num_rows
    lost = dict.fromkeys(TEXTS)  # the file was damaged, or has been deleted meanwhile
    return [{**row, **texts.get(row["place"], lost), "place": row["place"]} for row in rows]


def _rows(batch: pa.RecordBatch, first: int) -> list[Row]:
    rows: list[Row] = batch.to_pylist()
    for place, row in enumerate(rows, first):
        row["place"] = place
        if "reward_parts" in row:
            row["reward_parts"] = dict(row["reward_parts"] or ())
        if "response_length" in row:
            row["length"] = row.pop("response_length")
    return rows


def _where(options: ShowOptions) -> "pc.Expression | None":
    parts = {"outcome": options.outcome, "problem": options.problem, "role": options.role}
    wanted = [pc.field(name) == value for name, value in parts.items() if value]
    found = wanted[0] if wanted else None
    for each in wanted[1:]:
        found = found & each
    return found


def _explain_none(records: RunRecords, kind: str, step: int, options: ShowOptions) -> None:
    """Raises an error that says which filter matches no sample of the step."""
    names = ["outcome", "problem", "role"]
    rows = [row for batch in records.rollouts(kind, [step], names) for row in batch.to_pylist()]
    if not rows:
        raise RunDirError(f"step {step} of {_name(kind)} has no samples" + _because(records))
    if options.problem and options.problem not in (ids := {row["problem"] for row in rows}):
        raise ConfigError(_no_problem(records, kind, [step], options.problem, ids))
    for name in ("role", "outcome"):
        value = str(getattr(options, name))
        counts = Counter(str(row[name]) for row in rows)
        if value and value not in counts:
            near = get_close_matches(value, {*counts, *(Outcome if name == "outcome" else ())}, n=1)
            raise ConfigError(
                f"step {step} of {_name(kind)} has no samples with {name} {value!r}"
                + (f" (did you mean {near[0]}?)" if near and near[0] != value else "")
                + f"; there are {', '.join(f'{each} ({count})' for each, count in counts.most_common())}"
            )
    raise ConfigError(f"no sample of step {step} of {_name(kind)} has all that is asked for; leave out a filter")


def _no_problem(
    records: RunRecords, kind: str, steps: Sequence[int], problem: str, ids: Sequence[str] | set[str] = ()
) -> str:
    if not ids:
        batches = records.rollouts(kind, steps, ["problem"])
        ids = {str(each) for batch in batches for each in pc.unique(batch["problem"]).to_pylist()}
    near = get_close_matches(problem, sorted(ids)[:10_000], n=3, cutoff=0.5) or sorted(ids)[:3]
    where = f"step {steps[0]} of {_name(kind)}" if len(steps) == 1 else _name(kind)
    there = ", ".join(one_line(each, 80) for each in near)
    return f"{where} has no samples of a problem {problem!r}; there are {there}, ... ({len(ids)} problems)"


def _name(kind: str) -> str:
    names = {"train": "training", "test": "evaluations"}
    return names.get(kind) or f"evaluations on {kind.removeprefix('test-')}"


def _because(records: RunRecords) -> str:
    return "".join(f"; {note}" for note in records.notes)

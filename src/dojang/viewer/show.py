"""`dojang show`: prints samples of a run, or the difference between two steps, in a terminal or a pipe.

All text of models, datasets and judges is escaped (core/safe_text.py) and stands behind a bar, so it cannot be taken
for output of this program.
"""

import io
import json
import sys
from collections.abc import Iterator, Sequence

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dojang.core.safe_text import one_line, safe_text, shorten
from dojang.viewer.diff import Difference, Pair, find_difference
from dojang.viewer.options import ShowOptions
from dojang.viewer.records import RunRecords
from dojang.viewer.samples import Row, find_samples

__all__ = ["show"]

QUESTION = (400, 8)
RESPONSE = (1800, 24)
DETAIL = (400, 8)
"""Characters and lines of texts that are shortened."""
SIDE_BY_SIDE = 100
"""Terminal width, in columns, from which two answers stand side by side."""
BAR = "│ "
PLAIN = Console(file=io.StringIO(), color_system=None)
"""Wraps lines."""
KEYS = (
    *("step", "problem", "data_source", "prompt_index", "index", "role", "turn", "version", "question", "response"),
    *("outcome", "detail", "passed", "total", "reward", "reward_parts", "advantage", "length", "finish", "isolation"),
    "tests",
)
"""Keys of the JSON objects."""


def show(run: str, options: ShowOptions) -> None:
    """Prints what the options choose."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a pipe with an encoding that lacks a character of the text
        sys.stdout.reconfigure(errors="backslashreplace")
    records = RunRecords(run)
    console = Console(highlight=False, markup=False, emoji=False)
    if options.diff is None:
        samples = find_samples(records, options)
        _print_json([_object(row) for row in samples]) if options.as_json else _print_samples(console, samples, options)
    else:
        found = find_difference(records, options, options.diff)
        if options.as_json:
            _print_json([{"then": _object(then), "now": _object(now)} for then, now in found.pairs])
        else:
            _print_difference(console, found, options)
    for note in records.notes:
        typer.echo(f"note: {safe_text(note)}; it is left out", err=True)


def _object(row: Row) -> dict[str, object]:
    return {key: row[key] for key in KEYS}


def _print_json(objects: Sequence[object]) -> None:
    for each in objects:
        typer.echo(json.dumps(each))


def _print_samples(console: Console, samples: Sequence[Row], options: ShowOptions) -> None:
    for row in samples:
        _print(console, _heading(row))
        _print(console, _facts(row, options))
        for part in _texts(row, options, _width(console)):
            _print(console, part)
        _print(console, Text())


def _print_difference(console: Console, found: Difference, options: ShowOptions) -> None:
    then, now = found.steps
    total = sum(found.changes.values())
    _print(console, Text(f"step {then} -> step {now}: {total} samples of the same problems", "bold"))
    for (old, new), count in found.changes.items():
        line = Text(f"{count:>7,}  {count / total:>6.1%}  ")
        _print(console, line.append_text(_outcome(old)).append(" -> ").append_text(_outcome(new)))
    if any(found.unpaired):
        _print(console, Text(f"without a partner: {found.unpaired[0]} at {then}, {found.unpaired[1]} at {now}", "dim"))
    _print(console, Text())
    for pair in found.pairs:
        first = _heading(pair[1], ("problem", "role", "turn"))
        changed = _outcome(str(pair[0]["outcome"])).append(" -> ").append_text(_outcome(str(pair[1]["outcome"])))
        _print(console, first.append("  ").append_text(changed))
        _print(console, _bar("question", _cut(pair[1]["question"], QUESTION, options), _width(console)))
        _print_sides(console, pair, options)
        _print(console, Text())


def _print_sides(console: Console, pair: Pair, options: ShowOptions) -> None:
    beside = console.is_terminal and console.width >= SIDE_BY_SIDE
    width = console.width // 2 - 1 if beside else _width(console)
    sides = [
        Text("\n").join(
            [
                Text(f"step {row['step']}  ").append_text(_facts(row, options)),
                *_texts(row, options, width, question=False),
            ]
        )
        for row in pair
    ]
    if not beside:
        for side in sides:
            _print(console, side)
        return
    table = Table.grid(expand=True, padding=(0, 2, 0, 0), pad_edge=False)
    for _ in sides:
        table.add_column(ratio=1, overflow="fold")
    table.add_row(*sides)
    _print(console, table)


def _width(console: Console) -> int | None:
    """Columns of the terminal; None for a pipe, whose lines are not wrapped."""
    return console.width if console.is_terminal else None


def _print(console: Console, part: RenderableType) -> None:
    console.print(part, soft_wrap=not console.is_terminal)


def _heading(row: Row, names: Sequence[str] = ("step", "problem", "index", "role", "turn", "version")) -> Text:
    """Step, problem and what else tells the sample from others."""
    parts = {
        "step": f"step {row['step']}",
        "problem": one_line(str(row["problem"]), 120),
        "index": f"sample {row['index']}",
        "role": "" if row["role"] in ("policy", None) else one_line(str(row["role"]), 40),
        "turn": f"turn {row['turn']}" if row["turn"] else "",
        "version": f"weights {row['version']}",
    }
    return Text().append("  ".join(parts[name] for name in names if parts[name]), "bold")


def _facts(row: Row, options: ShowOptions) -> Text:
    """Outcome, reward with its parts, advantage, length."""
    trained = not (options.evaluation or options.benchmark)  # evaluations have no advantages
    line = _outcome(str(row["outcome"]))
    if row["total"] and row["total"] > 1:
        line.append(f" {row['passed']}/{row['total']} tests")
    if row["reward"] is not None:
        line.append(f"  reward {row['reward']:g}")
        parts = ", ".join(f"{one_line(str(name), 60)} {value:g}" for name, value in row["reward_parts"].items())
        line.append(f" ({parts})" if parts else "")
    if trained and row["advantage"] is not None:
        line.append(f"  advantage {row['advantage']:+.3g}")
    cut = " (cut at max_tokens)" if row["finish"] == "length" else ""
    return line.append("" if row["length"] is None else f"  {row['length']:,} tokens{cut}")


def _texts(row: Row, options: ShowOptions, width: int | None, *, question: bool = True) -> Iterator[Text]:
    if question:
        yield _bar("question", _cut(row["question"], QUESTION, options), width)
    yield _bar("answer", _cut(row["response"], RESPONSE, options), width)
    if row["detail"]:
        yield _bar("judge", _cut(row["detail"], DETAIL, options), width)
    if (failed := next((test for test in row["tests"] or () if test["outcome"] != "accepted"), None)) is not None:
        name = f"test {failed['test']}: {one_line(str(failed['outcome']), 40)}, {failed['cpu_s'] or 0:.2f} s"
        outputs = [failed[key] for key in ("detail", "output", "errors") if failed[key]]
        yield _bar(name, _cut("\n".join(outputs), DETAIL, options), width)


def _cut(text: str | None, most: tuple[int, int], options: ShowOptions) -> str:
    return safe_text((text or "") if options.full else shorten(text or "", *most))


def _bar(name: str, text: str, width: int | None) -> Text:
    """Text behind a bar, wrapped to a width so that wrapped lines are behind it, too."""
    lines = [part for line in text.split("\n") for part in _wrap(line, width)]
    return Text().append(f"{name}\n", "dim").append("\n".join(BAR + line for line in lines))


def _wrap(line: str, width: int | None) -> list[str]:
    if width is None or len(line) * 2 + len(BAR) <= width:
        return [line]
    return [each.plain for each in Text(line).wrap(PLAIN, max(width - len(BAR), 1), overflow="fold")]


def _outcome(name: str) -> Text:
    styles = {"accepted": "green", "judge_error": "magenta"}
    return Text().append(one_line(name, 40), styles.get(name, "red"))

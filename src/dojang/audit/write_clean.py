"""Writes a dataset without the problems that have excluded findings.

DIR/...              prepared rows in files of the same names; others as `dojang data prepare` writes them
DIR/left_out.json    excluded problems with their findings
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dojang.audit.findings import Audited
from dojang.audit.sources import Item, Source
from dojang.data.prepare_rows import SCHEMA
from dojang.data.prepared import PreparedConfig
from dojang.data.readers import find
from dojang.data.rows import to_row

__all__ = ["write_clean"]


def write_clean(
    source: Source, items: Sequence[Item], audited: Sequence[Audited], excluded: Collection[str], to: Path
) -> int:
    """Writes the clean dataset; returns the number of problems kept."""
    reasons = [sorted(each.names & set(excluded)) for each in audited]
    kept = [item for item, why in zip(items, reasons, strict=True) if not why]
    to.mkdir(parents=True, exist_ok=True)
    if source.folder is not None:
        _filter(source.folder, kept, to)
    else:
        _write(source.ability, kept, to)
    left = [
        {"id": each.problem.id, "split": each.split, "why": [finding._asdict() for finding in each.findings]}
        for each, why in zip(audited, reasons, strict=True)
        if why
    ]
    report: dict[str, Any] = {
        "from": source.name,
        "excluded": sorted(excluded),
        "kept": Counter(item.split for item in kept),
        "left_out": Counter(name for why in reasons for name in why),
        "problems": left,
    }
    (to / "left_out.json").write_text(json.dumps(report, indent=1) + "\n")
    return len(kept)


def _filter(folder: Path, kept: Sequence[Item], to: Path) -> None:
    """Copies the kept rows with all their columns."""

    wanted = defaultdict[str, set[int]](set)
    for item in kept:
        wanted[item.split].add(item.row)
    for split, rows in wanted.items():
        first = 0
        for file in PreparedConfig(path=folder).files(split):
            target = to / file.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            if file.suffix != ".parquet":
                first = _filter_json(file, target, rows, first)
                continue
            table = pq.read_table(file)
            mask = pa.array([first + number in rows for number in range(table.num_rows)])
            first += table.num_rows
            pq.write_table(table.filter(mask), target)


def _filter_json(file: Path, target: Path, kept: Collection[int], first: int) -> int:
    """Writes the kept rows as JSON lines; returns the number of the first row of the next file."""
    (source,) = find(str(file.resolve()))
    rows = [row for _, row in source.rows()]
    lines = [json.dumps(row) + "\n" for number, row in enumerate(rows, first) if number in kept]
    (target.parent / f"{target.name.partition('.')[0]}.jsonl").write_text("".join(lines))
    return first + len(rows)


def _write(ability: str, kept: Sequence[Item], to: Path) -> None:
    for split in dict.fromkeys(item.split for item in kept):
        chosen = [item.problem for item in kept if item.split == split]
        rows = [to_row(each, ability=ability, split=split, index=index) for index, each in enumerate(chosen)]
        target = to / split / "part-00000.parquet"
        target.parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), target)

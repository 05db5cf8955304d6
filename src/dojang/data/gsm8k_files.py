"""Converts GSM8K from any published layout to train.jsonl and test.jsonl, for data.name=gsm8k.

The files contain no prompts: a run makes them when it loads the data (data.style, data.shots).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from dojang.core.errors import DataError
from dojang.data.decontaminate import overlapping
from dojang.data.gsm8k import Gsm8kConfig, read_row
from dojang.data.prepare_rows import Report, Unusable, split_of
from dojang.data.readers import File

__all__ = ["Gsm8kFiles"]

_SPLITS = ("train", "test")


class Gsm8kFiles:
    """The published dataset; on the hub it is in the directory `main`; `socratic` has other solutions."""

    preferred: ClassVar[str] = "main"

    def write(self, files: Sequence[File], output: Path) -> Report:
        """Checks and writes all rows, in the order of the files. Keeps the authors' split; only reports overlap."""
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise DataError(f"{output} is not empty; choose another --output, or remove it to prepare it anew")
        report, lines = Report(), {split: list[str]() for split in _SPLITS}
        for file in files:
            for number, row in file.rows():
                report.read += 1
                split = _split(file)
                where = f"{file.path}, row {number}"
                read_row(row, where)
                lines[split].append(json.dumps({key: row[key] for key in ("question", "answer")}, ensure_ascii=False))
                report.kept[split] += 1
        if not report.read:
            raise DataError(f"{files[0].root} has no rows; GSM8K's rows have the columns question and answer")
        _write(output, lines)
        if all(lines.values()):
            config = Gsm8kConfig(path=output)
            report.overlap = overlapping(config.read("train"), {"the test split": config.read("test")})
        told: dict[str, Any] = {"dataset": "gsm8k", "files": [[each.path, each.size] for each in files]}
        (output / "report.json").write_text(json.dumps({**told, **report.as_json()}, indent=2) + "\n")
        return report


def _split(file: File) -> str:
    try:
        split = split_of(file.label)
    except Unusable as why:
        raise DataError(f"{file.path}: {why}; name it train or test, as in train.jsonl") from None
    if split not in _SPLITS:
        raise DataError(f"{file.path} looks like a split {split}, but GSM8K has train and test")
    return split


def _write(output: Path, lines: dict[str, list[str]]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    for split, some in lines.items():
        if some:
            (output / f"{split}.jsonl").write_text("\n".join(some) + "\n", encoding="utf-8")

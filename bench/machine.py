"""What every benchmark here shares: options, a description of the machine, and one way to print results."""

import argparse
import json
import os
import platform
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measurement beside its baseline; `ratio` above 1 means better than the baseline."""

    case: str
    subject: str
    baseline: str
    value: float
    baseline_value: float
    unit: str
    ratio: float | None
    """None where there is nothing to divide by."""
    notes: str = ""


def machine() -> str:
    """Cores, architecture and, if torch sees one, the GPU."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return f"{len(os.sched_getaffinity(0))} cores {platform.machine()}, {gpu}, torch {torch.__version__}"


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser that knows --json."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    return parser


def numbers(text: str) -> list[int]:
    """Whole numbers of an option, as its type."""
    parts = text.split(",")
    if not all(each.isdecimal() and int(each) for each in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers from 1, such as 1,2,4")
    return [int(each) for each in parts]


def report(bench: str, rows: list[Row], as_json: bool) -> None:
    """Print what was measured."""
    if as_json:
        print(json.dumps({"bench": bench, "machine": machine(), "rows": [asdict(row) for row in rows]}))
        return
    print(f"{bench} on {machine()}")
    for row in rows:
        print(
            f"  {row.case}: {row.subject} {row.value:,.3g} {row.unit}, {row.baseline} {row.baseline_value:,.3g} "
            f"{row.unit}: {'-' if row.ratio is None else f'{row.ratio:.2f}x'} {row.notes}"
        )

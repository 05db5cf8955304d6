"""Checks the lists of files that a page shows (`RUN_DIR/`, `OUTPUT/report.md`, `src/dojang/`) against real ones."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from doc_blocks import ROOT

__all__ = ["check_files"]

NOT_ALWAYS = {
    "config.1.yaml",
    "rollouts.journal",
    "test-humaneval-000025.parquet",
    "worker-0.log",
    "stall.txt",
    "mlflow.json",
    "best_model",
}
"""Files of a run that only some runs have; separate tests look for each."""


def check_files(text: str, places: Sequence[Path]) -> None:
    """Checks that every listed file is in one of the places, which are the last outputs of the page's commands."""
    missing = [name for name in _listed(text) if not any(_exists(name, place) for place in (ROOT, *places))]
    assert not missing, f"not there: {', '.join(missing)}; looked in {', '.join(map(str, places))}"


def _listed(text: str) -> Iterator[str]:
    """Paths of a list; those of indented lines are below the line before that ends with a slash."""
    below = ""
    for line in text.splitlines():
        if re.match(r"\s{8,}|$", line):  # the description goes on
            continue
        names = _paths(line)
        if line.endswith("/") and not line.startswith(" ") and len(names) == 1:
            below = names[0]
        else:
            yield from (f"{below if line.startswith(' ') else ''}{name}" for name in names)


def _paths(line: str) -> list[str]:
    """Paths at the start of a line; `checkpoints/last, best` are two in one folder."""
    found: list[str] = []
    for gap, word in re.findall(r"(\s*)(\S+)", line):
        name, after_comma = word.rstrip(","), bool(found) and gap == " "
        if after_comma and name != "...":
            found.append(name if "/" in name or "." in name else f"{found[-1].rpartition('/')[0]}/{name}")
        elif not after_comma and re.search(r"[/.]", name) and len(gap) <= 2:
            found.append(name)
        elif not after_comma:
            break
    return found


def _exists(name: str, place: Path) -> bool:
    rest = re.sub(r"^(?:RUN_DIR|OUTPUT)/", "", name)
    if rest.rpartition("/")[2] in NOT_ALWAYS or name.startswith(("STORAGE/", "RUN_DIR/token_values/")):
        return True
    pattern = re.sub(r"\d{6}", "*", rest.rstrip("/"))
    return any(place.glob(pattern))

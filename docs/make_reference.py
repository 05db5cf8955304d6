"""Writes docs/configuration.md from the settings' own docstrings. `--check` only says whether it is up to date."""

import sys
from collections.abc import Iterator
from pathlib import Path

from dojang.reference import keys

PAGE = Path(__file__).parent / "configuration.md"

OPENING = """\
# Configuration

Every setting, as it is written in a recipe (`train: {lr: 1e-5}`) or on the command line (`train.lr=1e-5`). This page is
made from the settings' own docstrings by `make docs`; `dojang train --keys` prints the same. A section that is chosen
by its `name` has further settings for each choice.
"""


def lines() -> Iterator[str]:
    yield OPENING
    heading = None
    for key in keys():
        section = key.only or key.name.rpartition(".")[0] or "run"
        if section != heading:
            heading = section
            yield f"\n## {heading}\n\n| key | type | default | |\n|---|---|---|---|"
        kind = key.kind.replace("|", "\\|")
        yield f"| `{key.name}` | {kind} | {key.default} | {' '.join(key.help.split())} |"


def main() -> int:
    page = "\n".join(lines()) + "\n"
    if "--check" in sys.argv:
        return int(not PAGE.exists() or PAGE.read_text() != page)
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())

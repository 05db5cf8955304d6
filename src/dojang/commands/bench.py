"""`dojang bench NAME`: a benchmark of the source checkout, with the rest of the command line passed on to it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dojang.core.errors import ConfigError

__all__ = ["available", "run"]

FOLDER = Path(__file__).resolve().parents[3] / "bench"


def available() -> list[str]:
    """The benchmarks that can be run; a script without a main part is there for others to import."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())


def run(name: str, arguments: Sequence[str]) -> NoReturn:
    """Become the benchmark: its exit code is the command's, and Ctrl-C reaches nobody else."""
    names = available()
    if not names:
        raise ConfigError(
            f"benchmarks live in the source tree, and there is no {FOLDER}; run this from a checkout of dojang "
            "(pip install --editable .)"
        )
    if name not in names:
        raise ConfigError(f"there is no benchmark {name!r}; there is {', '.join(names)}")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(FOLDER / f"{name}.py"), *arguments])

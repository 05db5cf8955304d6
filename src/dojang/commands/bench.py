"""`dojang bench NAME`: runs a benchmark of the source checkout with the remaining arguments."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from dojang.core.errors import ConfigError

__all__ = ["available", "run"]

FOLDER = Path(__file__).resolve().parents[3] / "bench"


def available() -> list[str]:
    """Names of the benchmarks: the scripts in bench/ with a main part."""
    return sorted(path.stem for path in FOLDER.glob("*.py") if '__name__ == "__main__"' in path.read_text())


def run(name: str, arguments: Sequence[str]) -> NoReturn:
    """Replaces this process with the benchmark, so that its exit code and Ctrl-C are the benchmark's."""
    names = available()
    if not names:
        raise ConfigError(
            f"benchmarks are part of the source tree, and {FOLDER} does not exist; run this from a checkout of dojang "
            "(pip install --editable .)"
        )
    if name not in names:
        said = f"unknown benchmark {name!r}; known: " if name else "give the name of a benchmark: "
        raise ConfigError(said + ", ".join(names))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, str(FOLDER / f"{name}.py"), *arguments])

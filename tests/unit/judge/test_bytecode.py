"""Sandboxes find the bytecode of their modules, also where dojang was installed without any."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dojang

PACKAGE = Path(dojang.__file__).parent
COMMAND = "from dojang.judge.host_capabilities import bare_python; bare_python('dojang.judge.sandbox.supervisor:main')"


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """A copy of the package without bytecode."""
    return Path(shutil.copytree(PACKAGE, tmp_path / "dojang", ignore=shutil.ignore_patterns("__pycache__", "static")))


def start(fresh: Path, **variables: str) -> list[str]:
    """Makes the command of a sandbox in a process of the copy. Returns the modules of the sandbox with bytecode."""
    environment = {**os.environ, "PYTHONPATH": str(fresh.parent), **variables}
    subprocess.run([sys.executable, "-c", COMMAND], env=environment, check=True)
    return sorted(path.name.partition(".")[0] for path in (fresh / "judge" / "sandbox" / "__pycache__").glob("*.pyc"))


def test_bytecode_is_written_for_all_modules_of_the_sandbox(fresh: Path) -> None:
    every = sorted(path.stem for path in (fresh / "judge" / "sandbox").glob("*.py"))
    assert start(fresh, PYTHONDONTWRITEBYTECODE="") == every


def test_no_bytecode_is_written_where_python_was_told_so(fresh: Path) -> None:
    assert start(fresh, PYTHONDONTWRITEBYTECODE="1") == []


def test_a_folder_that_cannot_be_written_is_no_error(fresh: Path) -> None:
    (fresh / "judge" / "sandbox" / "__pycache__").write_text("no folder")
    assert start(fresh, PYTHONDONTWRITEBYTECODE="") == []

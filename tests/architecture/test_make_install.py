"""`make install` updates an environment, makes one anew whose installation was interrupted, and keeps the user's."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = """#!/bin/sh
# Makes environments whose python, this file, installs nothing; with a file `broken` beside them, that fails.
case "$*" in
*"-m venv"*) for last; do :; done; mkdir -p "$last/bin" && cp "$0" "$last/bin/python" ;;
*"pip install"*) [ ! -e broken ] ;;
esac
"""

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def install(checkout: Path) -> "subprocess.CompletedProcess[str]":
    command = ["make", "install", f"PYTHON={checkout / 'python'}"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def interrupt(checkout: Path) -> None:
    """Fails while packages are installed, with files that pip may not survive."""
    (checkout / "broken").touch()
    assert install(checkout).returncode == 2
    (checkout / ".venv" / "half").touch()
    (checkout / "broken").unlink()


def change_packages(checkout: Path) -> None:
    """Changes them well after the environment was made: files of the same few milliseconds have the same time."""
    for name in ("pyproject.toml", "constraints.txt", ".venv/.ready"):
        os.utime(checkout / name, (1e9, 1e9))
    assert "Nothing to be done" in install(checkout).stdout
    (checkout / "pyproject.toml").touch()


def entries(checkout: Path) -> set[str]:
    return {path.name for path in (checkout / ".venv").iterdir()}


def test_an_interrupted_installation_is_made_anew(checkout: Path) -> None:
    interrupt(checkout)
    assert entries(checkout) == {".making", "bin", "half"}
    assert install(checkout).returncode == 0
    assert entries(checkout) == {".ready", "bin"}


def test_an_environment_is_updated_when_its_packages_change(checkout: Path) -> None:
    assert install(checkout).returncode == 0
    (checkout / ".venv" / "more").touch()
    change_packages(checkout)
    assert install(checkout).returncode == 0
    assert entries(checkout) == {".ready", "bin", "more"}
    change_packages(checkout)
    interrupt(checkout)
    assert install(checkout).returncode == 0
    assert entries(checkout) == {".ready", "bin"}


def test_the_user_s_environment_is_neither_cleared_nor_changed(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine").touch()
    ended = install(checkout)
    assert ended.returncode == 2
    assert (
        ".venv was not made by make, which would replace what is installed there; remove or rename it" in ended.stdout
    )
    assert entries(checkout) == {"mine"}
    (checkout / ".venv" / ".ready").touch()
    assert install(checkout).returncode == 0
    assert entries(checkout) == {".ready", "mine"}

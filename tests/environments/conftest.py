"""Interpreters with the packages of others' environments. Each has its own: the packages exclude each other."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _interpreter(variable: str, folder: str, package: str) -> str:
    path = Path(os.environ.get(variable, ROOT / folder / "bin" / "python"))
    if not path.exists():
        pytest.skip(f"no interpreter with {package} at {path}; make test-environments sets it up")
    return str(path)


@pytest.fixture(scope="session")
def python() -> str:
    """Path to an interpreter with the packages of requirements-games.txt."""
    return _interpreter("DOJANG_ENVIRONMENTS_PYTHON", ".venv-environments", "textarena")


@pytest.fixture(scope="session")
def verifiers_python() -> str:
    """Path to an interpreter with the packages of requirements-verifiers.txt."""
    return _interpreter("DOJANG_VERIFIERS_PYTHON", ".venv-verifiers", "verifiers")


@pytest.fixture(scope="session")
def openenv_python() -> str:
    """Path to an interpreter with the packages of requirements-openenv.txt."""
    return _interpreter("DOJANG_OPENENV_PYTHON", ".venv-openenv", "openenv")

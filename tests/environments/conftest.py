"""Interpreter with the packages of others' environments."""

import os
from pathlib import Path

import pytest

OWN = Path(__file__).resolve().parents[2] / ".venv-environments" / "bin" / "python"


@pytest.fixture(scope="session")
def python() -> str:
    """Path to an interpreter with the packages of requirements.txt."""
    path = Path(os.environ.get("DOJANG_ENVIRONMENTS_PYTHON", OWN))
    if not path.exists():
        pytest.skip(f"no interpreter with textarena at {path}; make test-environments sets it up")
    return str(path)

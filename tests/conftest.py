"""Fixtures every test may use."""

import os
from pathlib import Path

import pytest

BESIDE_THE_REPOSITORY = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets, which are too large to be part of the repository."""
    folder = Path(os.environ.get("DOJANG_DATA", BESIDE_THE_REPOSITORY))
    if not folder.is_dir():
        pytest.skip(f"no datasets at {folder}; set DOJANG_DATA to a folder that holds gsm8k/train.jsonl etc.")
    return folder

"""Losses and advantages beside TRL's own GRPOTrainer, and veRL's functions where it is installed (bench/losses.py)."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed here; make test-trl has it")
BENCH = Path(__file__).resolve().parents[2] / "bench" / "losses.py"


def test_losses_and_advantages_are_those_of_trl_and_verl() -> None:
    """In a process of its own: here TRL would take the folder tests/vllm for vLLM."""
    told = subprocess.run([sys.executable, str(BENCH), "--json"], check=True, capture_output=True, text=True).stdout
    rows = json.loads(told)["rows"]
    assert sum(row["baseline"] == "trl" for row in rows) >= 15
    for row in rows:
        assert row["value"] < 1e-6, row

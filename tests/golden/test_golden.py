"""A short run must reproduce the rewards that are checked in, exactly.

A change that is meant to alter the numbers shows so in its diff:

    python tests/golden/test_golden.py        # writes golden.json anew
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
FIGURES = ("actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "actor/lr")


def play(directory: Path) -> dict[str, Any]:
    """Run the recipe and collect what must not change."""
    command = [sys.executable, "-m", "dojang", "train", str(HERE / "golden.yaml"), "--run-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    steps = sorted((directory / "rollouts").glob("train-*.parquet"))
    tables = [pq.read_table(path).to_pylist() for path in steps]
    return {
        "accuracies": [row["val/accuracy/arithmetic"] for row in rows if "val/accuracy" in row],
        "held_out_rewards": [row["val/test_score/arithmetic"] for row in rows if "val/reward" in row],
        "rewards": [[row["reward"] for row in table] for table in tables],
        "first_tokens": [tables[0][0]["tokens"], tables[-1][-1]["tokens"]],
        "figures": [{name: row[name] for name in FIGURES} for row in rows if FIGURES[0] in row],
    }


@pytest.mark.slow
def test_the_golden_run_reproduces_exact_rewards(tmp_path: Path) -> None:
    expected = json.loads(GOLDEN.read_text())
    played = play(tmp_path / "run")
    assert played["rewards"] == expected["rewards"]
    assert played["accuracies"] == expected["accuracies"]
    assert played["held_out_rewards"] == expected["held_out_rewards"]
    assert played["first_tokens"] == expected["first_tokens"]
    for mine, theirs in zip(played["figures"], expected["figures"], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-8)  # see golden.yaml


def test_the_golden_run_has_something_to_say() -> None:
    """Rewards that never differ would make the comparison worthless."""
    expected = json.loads(GOLDEN.read_text())
    assert len(expected["rewards"]) == 6
    assert all(len(set(step)) > 1 for step in expected["rewards"])
    assert len(expected["figures"]) == 6


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        GOLDEN.write_text(json.dumps(play(Path(folder) / "run"), indent=1) + "\n")

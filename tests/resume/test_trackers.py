"""What trackers outside are told of a run that is made longer later, and what one costs that is never there."""

import json
import sys
from pathlib import Path

import pytest

import commands

RECIPE = Path(__file__).parent / "resume.yaml"

pytestmark = pytest.mark.slow


def train(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "dojang", "train", str(RECIPE), *arguments, "--run-dir", str(directory)]
    result = commands.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_a_resumed_run_exports_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'dojang[tensorboard]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory = tmp_path / "run"
    train(directory, "steps=2", "track.tensorboard=events", "track.prometheus.port=0")
    said = train(directory, "steps=3", "track.tensorboard=events", "--resume")
    assert "tensorboard:" not in said, "there is nothing to say when all is well"
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    seen = EventAccumulator(str(directory / "events"))
    seen.Reload()
    for name in ("critic/rewards/mean", "val/accuracy"):
        expected = [(row["step"], pytest.approx(row[name])) for row in rows if name in row]
        assert [(each.step, each.value) for each in seen.Scalars(name)] == expected


def test_a_tracker_that_is_never_there_costs_a_run_its_patience_and_no_more(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'dojang[tensorboard]'")
    (tmp_path / "file").touch()
    directory = tmp_path / "run"
    said = train(directory, "steps=15", f"track.tensorboard={tmp_path}/file", "track.timeout_s=0.5")
    assert "the run continues, and missed rows are delivered later" in said
    assert "lines of metrics and the end of the run were not delivered" in said
    assert f"track {directory}" in said.splitlines()[-1]
    assert json.loads((directory / "summary.json").read_text())["status"] == "finished"

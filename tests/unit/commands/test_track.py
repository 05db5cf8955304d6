"""`dojang track`."""

import json
from pathlib import Path

import pytest

from dojang.commands.track import deliver
from dojang.config import recipe as recipes
from dojang.core.errors import RunDirError
from dojang.core.run_dir import RunDir


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    directory = RunDir(tmp_path / "run-1")
    directory.path.mkdir()
    directory.config.write_text(recipes.to_yaml(recipes.load("quickstart", [])))
    directory.metrics.write_text(json.dumps({"step": 1, "reward": 0.5}) + "\n")
    return directory


def test_an_ended_run_is_exported_to_a_new_tracker(directory: RunDir) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'dojang[tensorboard]'")
    assert deliver(directory.path, ["track.tensorboard=events", "track.prometheus.port=1"])
    assert len(list((directory.path / "events").iterdir())) == 1
    known = json.loads(directory.delivered("tensorboard").read_bytes())
    assert known["bytes"] == directory.metrics.stat().st_size
    assert deliver(directory.path, ["track.tensorboard=events"])
    assert len(list((directory.path / "events").iterdir())) == 1, "there was nothing left to tell"


def test_undelivered_metrics_are_reported(directory: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'dojang[tensorboard]'")
    (directory.path / "events").write_text("in the way")
    assert not deliver(directory.path, ["track.tensorboard=events", "track.timeout_s=0.2"])
    assert "1 lines of metrics and the end of the run were not delivered" in capsys.readouterr().out


def test_a_running_run_is_refused(directory: RunDir) -> None:
    directory.lock()
    with pytest.raises(RunDirError, match="in use by process"):
        deliver(directory.path, [])
    directory.unlock()


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="no run in"):
        deliver(tmp_path, [])


def test_a_run_without_a_tracker_is_reported(directory: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert deliver(directory.path, [])
    assert "this run has no tracker; name one" in capsys.readouterr().out

"""Custom trackers: called for every line by the exporter thread, and validated before a run."""

import json
import sys
from pathlib import Path

import pytest

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.track.config import TrackConfig

MINE = """
told = []


class Tracker:
    def __init__(self, name="plain", fails=0):
        self.name, self.fails = name, fails

    def metrics(self, step, values):
        if self.fails:
            self.fails -= 1
            raise OSError("not yet")
        told.append((self.name, step, values))

    def close(self):
        told.append("closed")
        raise RuntimeError("never mind")


class Empty:
    pass


def make():
    return Tracker("made")


number = 3
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mytracker.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mytracker", None)


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.path.mkdir()
    rows = ({"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.75})
    found.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return found


def told(track: TrackConfig, directory: RunDir) -> tuple[list[object], list[str]]:
    said = list[str]()
    exporters = track.open(directory, said.append, "dojang track", steps=2)
    exporters.start()
    exporters.finish("finished")
    exporters.close()
    import mytracker

    return mytracker.told, said


@pytest.mark.parametrize(("spec", "options", "name"), [("Tracker", {"name": "x"}, "x"), ("make", {}, "made")])
def test_custom_tracker_gets_every_line(directory: RunDir, spec: str, options: dict[str, str], name: str) -> None:
    track = TrackConfig(custom=f"mytracker:{spec}", custom_options=options, timeout_s=5)
    found, _ = told(track, directory)
    assert found[:3] == [(name, 1, {"reward": 0.5}), (name, 2, {"reward": 0.75}), "closed"]
    count = len(found)
    assert "closed" in told(track, directory)[0][count:]  # nothing is told twice
    assert [each for each in found[count:] if each != "closed"] == []


def test_custom_tracker_error_is_reported_and_retried(directory: RunDir) -> None:
    track = TrackConfig(custom="mytracker:Tracker", custom_options={"fails": 1}, timeout_s=10)
    found, _ = told(track, directory)
    assert [each[1] for each in found if each != "closed"] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"custom": "mytracker:Empty"}, r"Empty has no metrics\(step, values\)"),
        ({"custom": "mytracker:number"}, "cannot be called"),
        ({"custom": "mytracker:nothing"}, "has no 'nothing'"),
        ({"custom": "nowhere:Tracker"}, "PYTHONPATH"),
        ({"custom_options": {"name": "x"}}, "have no effect without track.custom"),
    ],
)
def test_invalid_custom_tracker_is_refused_before_the_run(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        TrackConfig(**settings).check()

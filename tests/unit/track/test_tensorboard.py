"""TensorBoard event files, read back with TensorBoard."""

import json
from pathlib import Path

import pytest

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.track import config
from dojang.track.config import TrackConfig
from dojang.track.exporter import Row
from dojang.track.tensorboard import TensorboardSink

tensorboard = pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'dojang[tensorboard]'")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder))
    seen.Reload()
    return {tag: [(each.step, each.value) for each in seen.Scalars(tag)] for tag in seen.Tags()["scalars"]}


def test_every_metric_is_a_scalar(tmp_path: Path) -> None:
    sink = TensorboardSink(tmp_path / "events")
    sink.write_rows([Row(0, {"val/accuracy": 0.25}, 5.0), Row(1, {"reward": 0.5, "loss": -1.0}, 6.0)])
    sink.write_rows([Row(2, {"reward": 0.75}, 7.0)])
    assert read(tmp_path / "events") == {
        "val/accuracy": [(0, 0.25)],
        "reward": [(1, 0.5), (2, 0.75)],
        "loss": [(1, -1.0)],
    }


def test_repeated_steps_replace_earlier_ones(tmp_path: Path) -> None:
    first = TensorboardSink(tmp_path)
    first.write_rows(
        [Row(step, {"reward": float(step)}, 5.0) for step in (1, 2, 3)] + [Row(2, {"val/accuracy": 0.5}, 5.0)]
    )
    TensorboardSink(tmp_path).write_rows([Row(2, {"val/accuracy": 0.25}, 6.0), Row(3, {"reward": 30.0}, 6.0)])
    assert read(tmp_path)["reward"] == [(1, 1.0), (2, 2.0), (3, 30.0)]


def test_unwritable_folder_gets_its_rows_later(tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.write_text("in the way")
    sink = TensorboardSink(folder)
    with pytest.raises(OSError, match="File exists"):
        sink.write_rows([Row(1, {"reward": 1.0}, 5.0)])
    folder.unlink()
    sink.write_rows([Row(1, {"reward": 1.0}, 5.0)])
    assert read(folder) == {"reward": [(1, 1.0)]}


@pytest.mark.parametrize("absolute", [False, True])
def test_run_is_exported_to_its_folder(tmp_path: Path, absolute: bool) -> None:
    directory = RunDir(tmp_path / "run-1")
    directory.path.mkdir()
    directory.metrics.write_text(json.dumps({"step": 1, "reward": 0.5}) + "\n")
    track = TrackConfig(tensorboard=str(tmp_path / "all") if absolute else "events")
    said: list[str] = []
    exporters = track.open(directory, said.append, "later", steps=1)
    exporters.start()
    assert exporters.finish("finished")
    exporters.close()
    assert read(tmp_path / "all" / "run-1" if absolute else directory.path / "events") == {"reward": [(1, 0.5)]}
    assert said == []


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"track.tensorboard needs tensorboard: pip install 'dojang\[tensorboard\]'"):
        TrackConfig(tensorboard="tensorboard").check()

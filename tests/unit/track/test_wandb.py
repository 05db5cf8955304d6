"""Export to Weights & Biases: with a module in its place, and offline with the real one (`make test-trl` has it)."""

import json
import struct
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.track import config, exporter
from dojang.track.config import TrackConfig
from dojang.track.exporter import Exporters
from dojang.track.wandb import WandbConfig


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """Run directory of a run that has just started."""
    directory = RunDir(tmp_path / "run-1")
    directory.path.mkdir()
    directory.config.write_text(recipes.to_yaml(recipes.load("quickstart", ["steps=7"])))
    return directory


def write(directory: RunDir, *steps: int) -> None:
    with directory.metrics.open("a") as file:
        file.writelines(json.dumps({"step": step, "val/accuracy": step / 8}) + "\n" for step in steps)


def export(directory: RunDir, said: list[str], **settings: Any) -> Exporters:
    track = TrackConfig(wandb=WandbConfig(**settings), timeout_s=60.0)
    exporters = track.open(directory, said.append, "dojang track RUN", steps=7)
    exporters.start()
    return exporters


class FakeWandb(SimpleNamespace):
    """The parts of the wandb package that the sink calls."""

    def __init__(self) -> None:
        super().__init__(Settings=dict, options=[], logged=[], exits=[], error=None)

    def init(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.options.append(options)
        return SimpleNamespace(
            id=options["id"],
            url="https://wandb.ai/me/sums/runs/1",
            offline=options["mode"] == "offline",
            define_metric=lambda *_, **__: None,
            log=self.logged.append,
            finish=self.finish,
        )

    def finish(self, exit_code: int) -> None:
        self.exits.append(exit_code)
        if self.error is not None:
            raise self.error


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    found = FakeWandb()
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setitem(sys.modules, "wandb", found)
    monkeypatch.setattr(config, "find_spec", lambda name: found)
    monkeypatch.setattr(exporter, "LAST_RETRY_S", 0.01)
    monkeypatch.setattr(exporter, "HURRY_S", 0.2)
    return found


def test_resumed_run_continues_the_same_wandb_run(directory: RunDir, fake: FakeWandb) -> None:
    said: list[str] = []
    write(directory, 1, 2)
    export(directory, said, project="sums", tags=("a", "b")).finish("interrupted")
    write(directory, 3)
    assert export(directory, said, project="sums", tags=("a", "b")).finish("finished")
    first, second = fake.options
    assert first["id"] == second["id"]
    assert (second["resume"], second["project"], second["name"]) == ("allow", "sums", "run-1")
    assert (second["tags"], second["group"], second["mode"]) == (["a", "b"], None, "online")
    assert second["config"]["steps"] == 7
    assert "track" not in second["config"]
    assert fake.logged == [{"step": step, "val/accuracy": step / 8} for step in (1, 2, 3)]
    assert fake.exits == [1, 0]
    assert said[-1] == "wandb: all of it is in https://wandb.ai/me/sums/runs/1"


def test_environment_names_the_project(directory: RunDir, fake: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    export(directory, []).finish("finished")
    export(directory, [], project="mine").finish("finished")
    monkeypatch.delenv("WANDB_PROJECT")
    export(directory, []).finish("finished")
    assert [each["project"] for each in fake.options] == ["theirs", "mine", "dojang"]
    assert len({each["id"] for each in fake.options}) == 3  # another project is another run


def test_a_failure_is_reported_and_the_run_continues(directory: RunDir, fake: FakeWandb) -> None:
    said: list[str] = []
    write(directory, 1)
    fake.error = RuntimeError("No API key configured")
    assert not export(directory, said).finish("failed", hurry=True)
    assert "No API key configured" in said[-1]
    assert "dojang track RUN" in said[-1]
    fake.error = None
    assert export(directory, said).finish("finished")
    assert [row["step"] for row in fake.logged] == [1]


def test_upload_that_takes_too_long_names_the_command(directory: RunDir, fake: FakeWandb) -> None:
    said: list[str] = []
    exporters = export(directory, said)
    deadline = time.monotonic() + 60
    while not fake.options:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    fake.error = TimeoutError()
    assert exporters.finish("finished")
    assert f"wandb sync {directory.path}/wandb/*-{fake.options[0]['id']}" in said[-1]


def test_disabled_exports_nothing(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    said: list[str] = []
    assert export(directory, said, mode="disabled").finish("finished")
    assert not directory.delivered("wandb").exists()
    with pytest.raises(ConfigError, match=r"track.wandb needs wandb: pip install 'dojang\[wandb\]'"):
        TrackConfig(wandb=WandbConfig()).check()


def offline_records(directory: RunDir, kind: str) -> list[Any]:
    """Records of one kind in all files of an offline run, in order."""
    files = sorted(directory.path.glob("wandb/offline-run-*/*.wandb"))
    return [getattr(record, kind) for file in files for record in records(file) if record.HasField(kind)]


def records(file: Path) -> Iterator[Any]:
    """Reads the records of a .wandb file: chunks of a LevelDB log, after a header of seven bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # W&B's own
@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb: pip install 'dojang[wandb]'")
def test_offline_run_is_written_without_network_or_login(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_SILENT", "true")
    said: list[str] = []
    for steps in ((1, 2), (2, 3)):  # the second process repeats a step
        write(directory, *steps)
        assert export(directory, said, project="sums", mode="offline", group="g", tags=("a",)).finish("finished")
    deadline = time.monotonic() + 60
    while len(found := offline_records(directory, "history")) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)  # W&B's own process writes the end of its file after the run is finished
    rows = [{item.key or item.nested_key[0]: item.value_json for item in each.item} for each in found]
    assert [row["step"] for row in rows] == ["1", "2", "2", "3"]
    assert [row["val/accuracy"] for row in rows] == ["0.125", "0.25", "0.25", "0.375"]
    runs = offline_records(directory, "run")
    assert {(run.project, run.display_name, run.run_group, *run.tags) for run in runs} == {("sums", "run-1", "g", "a")}
    (run_id,) = {run.run_id for run in runs}
    assert said[-1] == f"wandb: to upload the run: wandb sync {directory.path}/wandb/*-{run_id}"

"""The part of a job that runs in its container, in a folder laid out as SageMaker lays out /opt/ml."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import commands
from dojang.cluster.sagemaker import entry_point
from dojang.cluster.sagemaker.payload import CHANNEL, Payload
from dojang.core.errors import ConfigError, DojangError
from dojang.core.run_dir import RunDir

QUICK = (
    *("rollout.prompts_per_step=2", "rollout.group_size=2", "rollout.max_tokens=4"),
    *("eval.every=1", "eval.problems=2", "checkpoint.every=1", "checkpoint.keep=9"),
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a container finds before it begins."""
    for folder in (f"input/data/{CHANNEL}", "input/config", "model", "output/data", "checkpoints"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    return tmp_path


def ship(root: Path, *overrides: str, recipe: str = "quickstart", **channels: str) -> None:
    Payload(recipe, (*QUICK, *overrides), channels).write(root / "input" / "data" / CHANNEL)


def begin(root: Path, *overrides: str) -> subprocess.Popen[str]:
    """As the container does it, in a process of its own."""
    command = [sys.executable, "-m", "dojang", "launch", "entry-point", *overrides]
    environment = {**os.environ, "SAGEMAKER_BASE_DIR": str(root), "OMP_NUM_THREADS": "1"}
    return commands.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=root
    )


def restart(root: Path) -> None:
    """What S3 gives a new container: files, where there were links and folders."""
    kept = root / "kept"
    shutil.copytree(root / "checkpoints", kept, symlinks=False)
    for folder in ("model", "output"):
        shutil.rmtree(root / folder)
        (root / folder).mkdir()
    shutil.rmtree(root / "checkpoints")
    kept.rename(root / "checkpoints")


def test_a_later_job_resumes_from_the_checkpoints_in_s3(root: Path) -> None:
    ship(root, "steps=2")
    job = begin(root)
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 0, said
    names = {path.name for path in (root / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any(name.startswith(".") for name in names)
    summary = json.loads((root / "output" / "data" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    assert not (root / "output" / "failure").exists()

    restart(root)
    last = RunDir(root / "checkpoints" / "run").checkpoints / "step-000002"
    (last / "model.safetensors").write_bytes(b"cut")  # the machine was gone before all of it had been copied
    ship(root, "steps=3")
    job = begin(root)
    said, _ = job.communicate(timeout=120)
    assert job.returncode == 0, said
    assert "removed incomplete checkpoints, whose copy to S3 was cut: step-000002" in said
    assert "resuming after step 1" in said
    assert ".exported" not in said
    assert json.loads((root / "output" / "data" / "summary.json").read_text())["steps"] == 3
    assert (root / "model" / "config.json").is_file()


def test_a_job_that_is_stopped_saves_and_is_no_failure(root: Path) -> None:
    ship(root, "steps=100000")
    job = begin(root)
    run = RunDir(root / "checkpoints" / "run")
    while run.last_checkpoint() is None and job.poll() is None:
        time.sleep(0.2)
    job.send_signal(signal.SIGTERM)
    said, _ = job.communicate(timeout=60)
    assert job.returncode == 130, said
    assert not (root / "output" / "failure").exists()
    assert not any((root / "model").iterdir())
    assert json.loads(run.summary.read_text())["status"] == "interrupted"


def test_a_mistake_is_what_sagemaker_will_show(root: Path) -> None:
    ship(root, "stps=2")
    with pytest.raises(ConfigError):
        entry_point.run([])
    assert "stps: no such key; did you mean steps?" in (root / "output" / "failure").read_text()


def test_settings_name_the_paths_of_input_channels(root: Path) -> None:
    ship(root, **{"model.name": "weights"})
    with pytest.raises(DojangError):  # there are none
        entry_point.run([])
    assert str(root / "input" / "data" / "weights") in (root / "output" / "failure").read_text()


def test_an_unexpected_error_is_reported_with_its_traceback(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("the bottom fell out " + "and out " * 500)

    ship(root)
    monkeypatch.setattr("dojang.runs.training.run", break_down)
    with pytest.raises(RuntimeError):
        entry_point.run([])
    failure = (root / "output" / "failure").read_text()
    assert failure.startswith("RuntimeError: the bottom fell out")
    assert len(failure) <= 1024


def test_the_first_failure_is_the_reported_one(root: Path) -> None:
    (root / "output" / "failure").write_text("a host never came")
    with pytest.raises(ConfigError, match=r"cannot read .*job\.json"):
        entry_point.run([])
    assert (root / "output" / "failure").read_text() == "a host never came"


def test_further_overrides_come_last(root: Path) -> None:
    ship(root, "steps=2")
    with pytest.raises(ConfigError, match="steps"):
        entry_point.run(["steps=nonsense"])


def test_a_custom_recipe_is_part_of_the_job(root: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("model: {name: dojang-tiny}\ndata: {name: arithmetic}\nstps: 1\n")
    ship(root, recipe=str(own))
    own.unlink()
    with pytest.raises(ConfigError, match="stps"):
        entry_point.run([])

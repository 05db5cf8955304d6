"""Where a run was started: environment.json."""

import json
import platform
from importlib.metadata import version
from pathlib import Path

import pytest

import dojang
from dojang.core.run_dir import RunDir
from dojang.runs.environment import describe_environment, record_start


def test_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dojang", "train", "quickstart", "judge.token=hush"])
    given = {"HF_TOKEN": "hush", "CUDA_VISIBLE_DEVICES": "0", "HOME": "/home/hush", "RAY_ADDRESS": "http://a:hush@b"}
    found = describe_environment(given)
    assert found["dojang"]["version"] == dojang.__version__
    assert (found["python"], found["packages"]["torch"]) == (platform.python_version(), version("torch"))
    assert found["cores"] > 0
    assert found["memory_gb"] > 0
    assert found["cpu"]
    assert found["command"] == ["dojang", "train", "quickstart", "judge.token=***"]
    assert found["variables"] == {"CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "***", "RAY_ADDRESS": "http://***@b"}
    assert "hush" not in json.dumps(found)


def test_a_checkout_has_a_commit() -> None:
    if not (Path(dojang.__file__).resolve().parents[2] / ".git").exists():
        pytest.skip("dojang is not imported from a checkout")
    assert len(describe_environment()["dojang"]["commit"]) == 40


def test_every_start_is_kept(tmp_path: Path) -> None:
    directory = RunDir(tmp_path)
    record_start(directory, 0)
    record_start(directory, 20)
    assert [each["step"] for each in json.loads(directory.environment.read_bytes())["starts"]] == [0, 20]
    directory.environment.write_text("{torn")
    record_start(directory, 40)
    assert [each["step"] for each in json.loads(directory.environment.read_bytes())["starts"]] == [40]

"""Export to MLflow: to a database, and to a real server that is killed and restarted."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.track import config, exporter
from dojang.track.config import TrackConfig
from dojang.track.exporter import Exporters
from dojang.track.mlflow import MlflowConfig

WITH_A_SERVER = os.environ.get("DOJANG_MLFLOW_PYTHON") or (sys.executable if find_spec("flask") else "")

needs_mlflow = pytest.mark.skipif(find_spec("mlflow") is None, reason="needs MLflow: pip install 'dojang[mlflow]'")
needs_server = pytest.mark.skipif(
    not WITH_A_SERVER,
    reason="needs all of MLflow: pip install mlflow, or a Python that has it in DOJANG_MLFLOW_PYTHON",
)
pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own business


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """Run directory of a run that has just started."""
    directory = RunDir(tmp_path / "run-1")
    directory.path.mkdir()
    directory.config.write_text(recipes.to_yaml(recipes.load("quickstart", ["steps=7"])))
    directory.run.write_text("{}")
    return directory


def write(directory: RunDir, *steps: int) -> None:
    with directory.metrics.open("a") as file:
        file.writelines(json.dumps({"step": step, "val/score@1": step / 8}) + "\n" for step in steps)


def complete(directory: RunDir) -> None:
    """Writes the files of a finished run."""
    checkpoint = directory.checkpoints / "step-000003"
    (checkpoint / "optimizer").mkdir(parents=True)
    for name in ("model.safetensors", "state.json", "optimizer/state.pt"):
        (checkpoint / name).write_text(name)
    directory.point("best", 3)
    directory.summary.write_text("{}")


def history(client: Any, run: str) -> list[tuple[int, float]]:
    return [(each.step, each.value) for each in client.get_metric_history(run, "val/score_1")]


def files(client: Any, run: str, folder: str | None = None) -> set[str]:
    return {
        path
        for each in client.list_artifacts(run, folder)
        for path in (files(client, run, each.path) if each.is_dir else {each.path})
    }


def until(true: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def send(uri: str, directory: RunDir, said: list[str], timeout_s: float = 90.0) -> Exporters:
    track = TrackConfig(mlflow=MlflowConfig(uri=uri, experiment="sums"), timeout_s=timeout_s)
    exporters = track.open(directory, said.append, "dojang track RUN", steps=1)
    exporters.start()
    return exporters


def only_run(uri: str) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("sums")
    (run,) = client.search_runs([experiment.experiment_id])
    return client, run


@needs_mlflow
@pytest.mark.slow
def test_resumed_run_continues_the_same_mlflow_run(tmp_path: Path, directory: RunDir) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    said: list[str] = []
    write(directory, 1, 2)
    exporters = send(uri, directory, said)
    until(lambda: json.loads(directory.delivered("mlflow").read_bytes())["bytes"])
    exporters.close()  # killed
    until(lambda: only_run(uri)[1].info.status == "RUNNING")
    write(directory, 3)
    complete(directory)
    assert send(uri, directory, said).finish("finished")
    client, run = only_run(uri)
    assert (run.info.run_name, run.info.status) == ("run-1", "FINISHED")
    assert run.data.params["steps"] == "7"
    assert run.data.params["algo.name"] == "grpo"
    assert history(client, run.info.run_id) == [(1, 0.125), (2, 0.25), (3, 0.375)]
    expected = {"config.yaml", "run.json", "summary.json", "metrics.jsonl", "model/model.safetensors"}
    assert files(client, run.info.run_id) == expected
    assert said == [f"mlflow: all of it is in run {run.info.run_id} of experiment sums"]


class Server:
    """A real MLflow server on a fixed port."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [WITH_A_SERVER, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self._folder}/server.db"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    yield server
    server.kill()


@needs_mlflow
@needs_server
@pytest.mark.slow
def test_restarted_server_gets_the_whole_run(
    server: Server, directory: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "LONGEST_RETRY_S", 1.0)
    said: list[str] = []
    server.start()
    exporters = send(server.uri, directory, said, timeout_s=3.0)
    write(directory, *range(1, 6))
    until(lambda: directory.delivered("mlflow").exists() and not left(directory))
    server.kill()
    started = time.monotonic()
    write(directory, *range(6, 11))
    assert time.monotonic() - started < 1
    until(lambda: said)
    assert "the run goes on" in said[0]
    server.start()
    until(lambda: not left(directory))
    server.kill()
    write(directory, *range(11, 16))
    complete(directory)
    assert not exporters.finish("finished")
    exporters.close()
    assert "5 lines of metrics" in said[-1]
    assert "dojang track RUN" in said[-1]
    server.start()
    assert send(server.uri, directory, said).finish("finished")
    client, run = only_run(server.uri)
    assert history(client, run.info.run_id) == [(step, step / 8) for step in range(1, 16)]
    assert run.info.status == "FINISHED"
    assert "model/model.safetensors" in files(client, run.info.run_id)


def left(directory: RunDir) -> int:
    """Bytes of metrics not delivered yet."""
    return int(directory.metrics.stat().st_size - json.loads(directory.delivered("mlflow").read_bytes())["bytes"])


def test_folder_as_tracking_uri_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"it looks like http://HOST:5000 or sqlite:///mlflow.db"):
        MlflowConfig(uri="./mlruns")


@pytest.mark.parametrize(("uri", "missing"), [("http://there:5000", "mlflow"), ("sqlite:///x.db", "sqlalchemy")])
def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, uri: str, missing: str) -> None:
    monkeypatch.setattr(config, "find_spec", lambda name: None if name == missing else object())
    with pytest.raises(ConfigError, match=r"track.mlflow needs MLflow: pip install 'dojang\[mlflow\]'"):
        TrackConfig(mlflow=MlflowConfig(uri=uri)).check()


ARNS = (
    "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team",
    "arn:aws-us-gov:sagemaker:us-gov-west-1:123456789012:mlflow-app/app-AB12CD34",
)


@pytest.mark.parametrize("arn", ARNS)
def test_sagemaker_arns_are_accepted(arn: str) -> None:
    assert MlflowConfig(uri=arn).on_sagemaker


@pytest.mark.parametrize(
    "uri",
    [
        "arn:aws:s3:us-east-1:123456789012:bucket/x",
        "arn:aws:sagemaker:us-east-1:123:mlflow-app/x",
        "arn:aws:sagemaker:us-east-1:123456789012:endpoint/x",
    ],
)
def test_other_arns_are_refused(uri: str) -> None:
    with pytest.raises(ValidationError, match="mlflow-tracking-server/NAME"):
        MlflowConfig(uri=uri)


def test_environment_enables_mlflow_and_settings_take_precedence() -> None:
    here = {
        "MLFLOW_TRACKING_URI": "http://there:5000",
        "MLFLOW_EXPERIMENT_NAME": "sums",
        "MLFLOW_TAGS": '{"project": "a", "trial": 3}',
    }
    assert TrackConfig().mlflow_settings({}) is None
    found = TrackConfig().mlflow_settings(here)
    assert found is not None
    assert (found.uri, found.experiment, found.tags) == ("http://there:5000", "sums", {"project": "a", "trial": "3"})
    own = MlflowConfig(uri=ARNS[0], experiment="mine", tags={"project": "b"})
    found = TrackConfig(mlflow=own).mlflow_settings(here)
    assert found is not None
    assert (found.uri, found.experiment, found.tags) == (ARNS[0], "mine", {"project": "b", "trial": "3"})
    partly = TrackConfig(mlflow=MlflowConfig(run_name="first")).mlflow_settings(here)
    assert partly is not None
    assert (partly.uri, partly.run_name) == ("http://there:5000", "first")


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"MLFLOW_TRACKING_URI": "file:///mlruns"}, r"MLFLOW_TRACKING_URI: 'file:///mlruns' is not an .*unset it"),
        ({"MLFLOW_TRACKING_URI": "http://there", "MLFLOW_TAGS": "a=b"}, "MLFLOW_TAGS='a=b' is not a JSON object"),
        ({}, "track.mlflow has no address"),
    ],
)
def test_invalid_environment_is_refused(here: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TrackConfig(mlflow=MlflowConfig()).mlflow_settings(here)


def test_missing_sagemaker_plugin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "find_spec", lambda name: None if name == "sagemaker_mlflow" else object())
    TrackConfig(mlflow=MlflowConfig(uri="http://there:5000")).check()
    with pytest.raises(ConfigError, match=r"pip install 'dojang\[sagemaker-mlflow\]'"):
        TrackConfig(mlflow=MlflowConfig(uri=ARNS[0])).check()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ARNS[1])
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI is set, which needs SageMaker's plugin"):
        TrackConfig().check()


@needs_mlflow
@pytest.mark.slow
def test_run_is_exported_to_the_uri_in_the_environment(
    tmp_path: Path, directory: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "sums")
    monkeypatch.setenv("MLFLOW_TAGS", '{"project": "gsm8k"}')
    said: list[str] = []
    write(directory, 1)
    complete(directory)
    exporters = TrackConfig(timeout_s=90).open(directory, said.append, "dojang track RUN", steps=1)
    exporters.start()
    assert exporters.finish("finished")
    client, run = only_run(uri)
    assert run.data.tags["project"] == "gsm8k"
    assert history(client, run.info.run_id) == [(1, 0.125)]
    assert said[0] == f"mlflow: MLFLOW_TRACKING_URI is set, so metrics go to {uri}, experiment sums"

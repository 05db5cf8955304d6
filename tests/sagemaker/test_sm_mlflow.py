"""A run in SageMaker's managed MLflow: by its ARN, through Amazon's plugin, with MLflow's own server in its place."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dojang.cluster.sagemaker.job import plan
from dojang.cluster.sagemaker.options import Options
from dojang.cluster.sagemaker.source_code import extras
from dojang.config import recipe as recipes
from dojang.core.run_dir import RunDir
from dojang.track.config import TrackConfig

pytest.importorskip("sagemaker_mlflow", reason="sagemaker-mlflow is not installed here; make test-sagemaker has it")
pytest.importorskip("flask", reason="MLflow's server is not installed here; make test-sagemaker has it")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SERVER = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/team"
APP = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-app/app-AB12CD34"


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An MLflow server that the plugin takes for SageMaker's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/server.db", "--no-serve-artifacts"]
    command += ["--default-artifact-root", str(tmp_path / "artifacts")]  # SageMaker's is a folder in S3
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, **quiet)
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while True:
        try:
            urllib.request.urlopen(f"{address}/health", timeout=5).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.2)
    for name, value in {
        "SAGEMAKER_MLFLOW_CUSTOM_ENDPOINT": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    yield address
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


@pytest.mark.parametrize("arn", [SERVER, APP])
def test_metrics_go_to_the_mlflow_arn_of_the_environment(
    arn: str, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", arn)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "gsm8k")
    monkeypatch.setenv("MLFLOW_TAGS", '{"team": "maths"}')
    directory = RunDir(tmp_path / "run-1")
    directory.path.mkdir()
    directory.config.write_text(recipes.to_yaml(recipes.load("quickstart")))
    directory.run.write_text("{}")
    directory.summary.write_text("{}")
    directory.metrics.write_text(json.dumps({"step": 1, "critic/rewards/mean": 0.5}) + "\n")
    said: list[str] = []
    exporters = TrackConfig(timeout_s=60).open(directory, said.append, "dojang track RUN", steps=1)
    exporters.start()
    assert exporters.finish("finished"), said

    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=endpoint)
    (run,) = client.search_runs([client.get_experiment_by_name("gsm8k").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.tags["team"] == "maths"
    assert run.data.metrics["critic/rewards/mean"] == 0.5


def test_a_job_gets_the_plugin_and_the_variables() -> None:
    here = {"MLFLOW_TRACKING_URI": SERVER, "MLFLOW_EXPERIMENT_NAME": "gsm8k", "MLFLOW_TAGS": '{"team": "maths"}'}
    options = Options(role="arn:aws:iam::123456789012:role/Trainer", instance_type="ml.c7i.4xlarge")
    job = plan("quickstart", [], options, local=here)
    assert {name: job.environment[name] for name in here} == here
    assert "sagemaker-mlflow" in extras(job.config, job.environment)

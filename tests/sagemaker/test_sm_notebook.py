"""The notebook for GSM8K, cell by cell, with moto in Amazon's place: launched, followed, fetched and cleaned up."""

import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cloud import ACCOUNT, BUCKET, REGION, ROLE, log_group, uploaded

from dojang.cluster.sagemaker.follow import GROUP

pytest.importorskip("moto", reason="moto is not installed here; make test-sagemaker has it")
boto3 = pytest.importorskip("boto3", reason="boto3 is not installed here; make test-sagemaker has it")
pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "examples" / "sagemaker_gsm8k.ipynb"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """GSM8K's files, small."""
    (tmp_path / "published").mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"What is {n} + {n}?", "answer": f"It is.\n#### {2 * n}"} for n in range(40)]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "published" / f"{split}.jsonl").write_text(text)
    return tmp_path / "published"


@pytest.fixture
def mlflow_servers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests for MLflow servers, which moto does not know; their parameters are checked by the SDK."""
    asked: list[str] = []
    real = boto3.Session

    def session(**given: Any) -> Any:
        found = real(**given)
        for operation in ("Create", "Describe", "Delete"):

            def answer(model: Any, **_: Any) -> Any:
                asked.append(model.name)
                return SimpleNamespace(status_code=200), {"TrackingServerStatus": "Created"}

            found.events.register(f"before-call.sagemaker.{operation}MlflowTrackingServer", answer)
        return found

    monkeypatch.setattr(boto3, "Session", session)
    return asked


@pytest.fixture
def cell(
    amazon: Any, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], dict[str, Any]]:
    """Executes a cell by its id."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TAGS"):
        monkeypatch.setenv(name, "")  # what the notebook sets ends with the test
    sources = {each["id"]: "".join(each["source"]) for each in json.loads(NOTEBOOK.read_text())["cells"]}
    names: dict[str, Any] = {}

    def run(which: str) -> dict[str, Any]:
        exec(sources[which], names)
        if which == "settings":
            names.update(ACCOUNT=ACCOUNT, REGION=REGION, ROLE=ROLE, BUCKET=BUCKET, DATASET=str(dataset))
        return names

    return run


def test_the_notebook_from_data_to_clean_up(
    amazon: Any, cell: Callable[[str], dict[str, Any]], mlflow_servers: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    for which in ("settings", "call", "mlflow", "environment", "data", "plan", "dry"):
        names = cell(which)
    said = capfd.readouterr().out
    assert "runtime.trainers=4 runtime.engines=4 chosen for the 8 GPUs of the job" in said
    assert f'"MLFLOW_TRACKING_URI": "{names["MLFLOW_ARN"]}"' in said  # moto does not keep the environment of a job
    assert mlflow_servers[0] == "CreateMlflowTrackingServer"

    cell("submit")
    cell("follow")
    said = capfd.readouterr().out
    assert f"sagemaker-training-job:{names['NAME']}_algo-1" in said
    assert "create-presigned-mlflow-tracking-server-url" in said
    job = amazon.client("sagemaker").describe_training_job(TrainingJobName=names["NAME"])

    bucket, _, key = job["ModelArtifacts"]["S3ModelArtifacts"].removeprefix("s3://").partition("/")
    for archive, file in (("model.tar.gz", "config.json"), ("output.tar.gz", "summary.json")):
        amazon.client("s3").put_object(
            Bucket=bucket, Key=key.replace("model.tar.gz", archive), Body=packed(file, b'{"status": "finished"}')
        )
    cell("results")
    assert '"status": "finished"' in capfd.readouterr().out

    calls: list[tuple[str, ...]] = []
    names["dojang"] = lambda *arguments: calls.append(arguments)
    cell("eval")
    assert [call[1] for call in calls] == [names["BASE"], "model", "--compare"]
    assert all("0,2,4,8" in call for call in calls[:2])
    assert calls[2][2:4] == ("evals/base", "evals/trained")

    logs = log_group(amazon)
    for stream in (f"{names['NAME']}/algo-1-1", "another-job/algo-1-1"):
        logs.create_log_stream(logGroupName=GROUP, logStreamName=stream)
    for which in ("cleanup-jobs", "cleanup-logs", "cleanup-bucket", "cleanup-mlflow"):
        cell(which)
    streams = logs.describe_log_streams(logGroupName=GROUP)["logStreams"]
    left = [stream["logStreamName"] for stream in streams]
    assert "another-job/algo-1-1" in left
    assert not [name for name in left if name.startswith(names["NAME"])]
    assert not uploaded(amazon, f"s3://{BUCKET}/{names['PREFIX']}/")
    assert mlflow_servers[-1] == "DeleteMlflowTrackingServer"


def packed(name: str, content: bytes) -> bytes:
    """A tar.gz with one file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        about = tarfile.TarInfo(name)
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    return buffer.getvalue()

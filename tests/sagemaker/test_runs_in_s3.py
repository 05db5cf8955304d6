"""Runs in S3, looked at without a copy: `dojang show`, `explain` and `view` of s3:// addresses."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from dojang.commands.main import app
from dojang.core.errors import ConfigError, DojangError, RunDirError
from dojang.core.run_dir import RunDir
from dojang.core.run_files import RunFiles
from dojang.viewer.records import COLUMNS, RunRecords
from dojang.viewer.server import Viewer
from rollout_files import row, write
from synthetic_run import NEEDLE, make_run

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed here; make test-sagemaker has it")
moto = pytest.importorskip("moto.server", reason="moto is not installed here; make test-sagemaker has it")
serving = pytest.importorskip("werkzeug.serving", reason="moto is not installed here; make test-sagemaker has it")

BUCKET = "runs-of-a-team"


@dataclass
class Store:
    """moto's S3, with a list of the ranges of bytes that were read."""

    address: str
    client: Any = None
    reads: list[tuple[str, int]] = field(default_factory=list)

    def upload(self, folder: Path, prefix: str) -> str:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.client.upload_file(str(path), BUCKET, f"{prefix}/{path.relative_to(folder)}")
        return f"s3://{BUCKET}/{prefix}"

    def bytes_of(self, name: str) -> int:
        return sum(size for path, size in self.reads if path.endswith(name))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    backend = moto.DomainDispatcherApplication(moto.create_backend_app)
    reads: list[tuple[str, int]] = []

    def counted(environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        def note(status: str, headers: Any, *rest: Any) -> Any:
            if environ["REQUEST_METHOD"] == "GET":
                reads.append((environ["PATH_INFO"], int(dict(headers).get("Content-Length", 0))))
            return start(status, headers, *rest)

        return backend(environ, note)

    server = serving.make_server("127.0.0.1", 0, counted, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    settings = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    for name, value in {**settings, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=address, region_name="us-east-1")
    client.create_bucket(Bucket=BUCKET)
    yield Store(address, client, reads)
    for each in client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
        client.delete_object(Bucket=BUCKET, Key=each["Key"])
    client.delete_bucket(Bucket=BUCKET)
    server.shutdown()
    thread.join()
    server.server_close()


def ask(client: httpx.Client, path: str, **params: Any) -> Any:
    reply = client.get(f"/api/{path}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()


def command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if isinstance(result.exception, DojangError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_records_are_those_of_the_local_copy(store: Store, tmp_path: Path) -> None:
    local = make_run(tmp_path / "run", 200, per_step=50, evaluations=2)
    remote = store.upload(local, "jobs/run")
    here, there = RunRecords(local), RunRecords(remote)
    assert (there.config, there.run, there.summary) == (here.config, here.run, here.summary)
    assert there.metrics() == here.metrics()
    assert (there.kinds, there.steps("test")) == (("test", "train"), [2, 4])
    for kind in here.kinds:
        pairs = zip(there.rollouts(kind, columns=COLUMNS), here.rollouts(kind, columns=COLUMNS), strict=True)
        assert all(first.equals(second) for first, second in pairs)
    assert command("show", remote, "--json", "--limit", "9") == command("show", str(local), "--json", "--limit", "9")
    assert json.loads(command("explain", remote, "--json")) == json.loads(command("explain", str(local), "--json"))


def test_errors_name_the_address(store: Store, tmp_path: Path) -> None:
    store.upload(make_run(tmp_path / "run", 10), "jobs/run")
    with pytest.raises(RunDirError, match=f"s3://{BUCKET}/jobs holds no run; give s3://{BUCKET}/jobs/run"):
        command("show", f"s3://{BUCKET}/jobs")
    for place in (f"s3://{BUCKET}/nothing", "s3://no-such-bucket/run"):
        with pytest.raises(RunDirError, match=f"{place} holds no run"):
            command("show", place)
        with pytest.raises(RunDirError, match=f"{place} holds no run"):
            Viewer([place])
    with pytest.raises(RunDirError, match="is no run"):
        command("explain", f"s3://{BUCKET}/nothing")
    with pytest.raises(ConfigError, match="names no bucket"):
        RunFiles("s3://")


def test_a_run_is_viewed_without_downloading_it(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.viewer.run_index._POLL_S", {True: 0.2, False: 0.2})
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("steps: 3\n")
    noise = [Random(number).randbytes(60_000).hex() for number in range(20)]
    rows = [row(1, index, response=f"{NEEDLE} {noise[index]}") for index in range(20)]
    path = write(run, "train", 1, rows)
    store.upload(run, "jobs/run")
    store.upload(make_run(tmp_path / "other", 30, per_step=10), "jobs/other")
    with Viewer([f"s3://{BUCKET}/jobs"]) as viewer, httpx.Client(base_url=viewer.url, timeout=60) as client:
        assert [each["id"] for each in ask(client, "runs")["runs"]] == ["other", "run"]
        facets = ask(client, "runs/run/facets")
        assert facets["kinds"] == {"train": [1, 1, 20]}
        assert store.bytes_of("train-000001.parquet") < path.stat().st_size / 5  # no text
        found = ask(client, "runs/run/rollouts", sort="-reward", limit=3)
        assert [each["snippet"][: len(NEEDLE)] for each in found["rows"]] == [NEEDLE] * 3
        sample = ask(client, "runs/run/rollout", step=1, prompt_index=3, index=3)
        assert sample["response"] == rows[3]["response"]
        until(client, 20, q=NEEDLE)
        store.upload(write(run, "train", 2, [row(2)]).parent, "jobs/run/rollouts")
        until(client, 21)
        store.client.delete_object(Bucket=BUCKET, Key="jobs/run/rollouts/train-000001.parquet")
        until(client, 1)
        assert ask(client, "state")["runs"]["run"]["indexed_files"] == 1
    assert RunDir(run).rollouts("train", 1).exists()


def until(client: httpx.Client, total: int, **params: Any) -> None:
    end = time.monotonic() + 30
    while (found := ask(client, "runs/run/rollouts", **params))["total"] != total:
        assert time.monotonic() < end, found["total"]
        time.sleep(0.1)

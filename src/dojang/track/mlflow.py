"""Exports a run to MLflow: settings as parameters, metrics as metrics, files and the best model as artifacts.

The client's retries, which can take minutes, are disabled, because the exporter thread retries. MLflow's environment
variables (credentials above all) apply.
"""

import logging
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dojang.core.run_dir import RunDir
from dojang.core.section import flatten
from dojang.track.exporter import Row

__all__ = ["MlflowSink"]

ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
KEY = "dojang.key"
"""Tag by which to find a run whose creation was not confirmed."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
METRICS_AT_A_TIME, PARAMS_AT_A_TIME, LONGEST_PARAM, LONGEST_NAME = 1000, 100, 6000, 250
"""MLflow's limits."""
NOT_THE_MODEL = {"optimizer", "critic", "state.json", "pending.json", "files.json"}
"""Files of a checkpoint that only serve to resume."""


class MlflowSink:
    """A Sink that writes to one run of an MLflow experiment; a resumed run continues the same MLflow run."""

    name = "mlflow"

    def __init__(
        self,
        uri: str,
        experiment: str,
        run_name: str,
        directory: RunDir,
        *,
        model: bool,
        tags: Mapping[str, str],
    ) -> None:
        self.address = f"{uri} {experiment}"
        self._uri = uri
        self._experiment = experiment
        self._run_name = run_name or directory.path.resolve().name
        self._directory = directory
        self._with_model = model
        self._tags = tags
        self._client: Any = None
        self._run = ""
        self._sent: dict[str, Any] = {}
        self._save_state: Callable[[], None] = lambda: None

    def start(self, state: dict[str, Any], save_state: Callable[[], None]) -> None:
        self._client = client = self._connect()
        if "key" not in state:
            state["key"] = uuid.uuid4().hex
            save_state()
        if "run" not in state:
            state["run"] = self._make_run(client, state["key"])
            save_state()
        self._run, self._sent, self._save_state = state["run"], state.setdefault("files", {}), save_state
        client.update_run(self._run, status="RUNNING")
        self._log_params(client)
        self._send_files(self._directory.config, self._directory.run)

    def write_rows(self, rows: Sequence[Row]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_name(metric), value, int(row.read_at * 1000), row.step)
            for row in rows
            for metric, value in row.values.items()
        ]
        for part in _parts(metrics, METRICS_AT_A_TIME):
            self._client.log_batch(self._run, metrics=part, synchronous=True)

    def finish(self, status: str) -> str:
        directory = self._directory
        self._send_files(directory.summary, directory.chart, directory.metrics)
        if self._with_model and status == "finished":
            self._send_model()
        self._client.set_terminated(self._run, STATUS[status])
        return f"all of it is in run {self._run} of experiment {self._experiment}"

    def close(self) -> None:
        return None

    def _connect(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table of a new database
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self._uri)

    def _make_run(self, client: Any, key: str) -> str:
        found = client.get_experiment_by_name(self._experiment)
        experiment = found.experiment_id if found else client.create_experiment(self._experiment, self._artifacts())
        known = client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        if known:
            return str(known[0].info.run_id)
        tags = {**self._tags, KEY: key, "dojang.run_dir": str(self._directory.path.resolve())}
        return str(client.create_run(experiment, tags=tags, run_name=self._run_name).info.run_id)

    def _artifacts(self) -> str | None:
        """Returns the artifact location for a local database (next to it); a server has its own."""
        if not self._uri.startswith("sqlite:///"):
            return None
        return (Path(self._uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()

    def _log_params(self, client: Any) -> None:
        """Logs parameters that are not logged yet: MLflow parameters cannot change. config.yaml has a resumed run's."""
        from mlflow.entities import Param

        known = client.get_run(self._run).data.params
        tree = yaml.safe_load(self._directory.config.read_text())
        params = [
            Param(_name(key), str(value)[:LONGEST_PARAM])
            for key, value in flatten(tree)
            if _name(key) not in known and not key.startswith("track")
        ]
        for part in _parts(params, PARAMS_AT_A_TIME):
            client.log_batch(self._run, params=part, synchronous=True)

    def _send_model(self) -> None:
        checkpoints = self._directory.checkpoint_names()
        root = checkpoints.get("best") or checkpoints.get("last")
        if root is None:
            return
        for path in sorted(root.rglob("*")):
            place = path.relative_to(root)
            if path.is_file() and not NOT_THE_MODEL.intersection(place.parts):
                self._send(path, posixpath.join("model", place.parent.as_posix()).removesuffix("/."))

    def _send_files(self, *paths: Path) -> None:
        for path in paths:
            if path.exists():
                self._send(path, "")

    def _send(self, path: Path, folder: str) -> None:
        """Uploads a file unless already uploaded, so that an interrupted upload of a model continues."""
        about, name = path.stat(), posixpath.join(folder, path.name)
        version = [str(path), about.st_size, about.st_mtime_ns]
        if self._sent.get(name) == version:
            return
        self._client.log_artifact(self._run, str(path), folder or None)
        self._sent[name] = version
        self._save_state()


def _name(metric: str) -> str:
    """Replaces characters that MLflow does not allow."""
    return posixpath.normpath(re.sub(r"[^\w./\- ]", "_", metric)).lstrip("/.")[:LONGEST_NAME]


def _parts(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]

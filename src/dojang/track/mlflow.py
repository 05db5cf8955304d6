"""Exports a run to MLflow: settings as parameters, metrics as metrics, files and the best model as artifacts.

The client's retries, which can take minutes, are disabled, because the exporter thread retries. MLflow's environment
variables (credentials above all) apply.
"""

import json
import logging
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError, field_validator

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.core.section import Section, complaints, flatten
from dojang.track.exporter import Row, Sink

__all__ = ["MlflowConfig", "MlflowSink"]

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
NOT_THE_MODEL = {"optimizer", "critic", "state.json", "pending.groups", "files.json"}
"""Files of a checkpoint that only serve to resume."""
_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:mlflow-(tracking-server|app)/[\w.-]+")


class MlflowConfig(Section):
    """Export to a run in an MLflow experiment."""

    uri: str = ""
    """Address of the MLflow server: http://HOST:5000, a database (sqlite:///PATH), or the ARN of an MLflow server or
    app of Amazon SageMaker. Empty: MLFLOW_TRACKING_URI."""
    experiment: str = ""
    """Name of the experiment; created if missing. Empty: MLFLOW_EXPERIMENT_NAME, or dojang."""
    run_name: str = ""
    """Name of the MLflow run. Empty: the name of the run directory."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the MLflow run, in addition to those of MLFLOW_TAGS (a JSON object)."""
    model: bool = True
    """Whether to upload the best model when the run finishes."""

    @field_validator("uri")
    @classmethod
    def _is_no_folder(cls, uri: str) -> str:
        if uri and not uri.startswith(("http://", "https://", "sqlite:///")) and not _ARN.fullmatch(uri):
            raise ValueError(
                f"{uri!r} is not an MLflow tracking URI; it looks like http://HOST:5000 or sqlite:///mlflow.db, or "
                "arn:aws:sagemaker:REGION:ACCOUNT:mlflow-tracking-server/NAME (or mlflow-app/ID)"
            )
        return uri

    @property
    def on_sagemaker(self) -> bool:
        """Whether the server is an Amazon SageMaker MLflow server."""
        return self.uri.startswith("arn:")

    def completed(self, environment: Mapping[str, str]) -> "MlflowConfig":
        """Returns a copy with empty settings filled in from MLflow's environment variables."""
        experiment = self.experiment or environment.get("MLFLOW_EXPERIMENT_NAME") or "dojang"
        tags = {**_tags(environment.get("MLFLOW_TAGS", "")), **self.tags}
        update = {"experiment": experiment, "tags": tags}
        if self.uri:
            return self.model_copy(update=update)
        try:
            return MlflowConfig(**{**self.model_dump(), **update, "uri": environment.get("MLFLOW_TRACKING_URI", "")})
        except ValidationError as error:
            said = "; ".join(complaints(error)).removeprefix("uri: ")
            raise ConfigError(f"MLFLOW_TRACKING_URI: {said}; or unset it to leave MLflow out") from None


def _tags(text: str) -> dict[str, str]:
    """Parses MLFLOW_TAGS in the format of the Hugging Face trainers."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'MLFLOW_TAGS={text!r} is not a JSON object; it looks like {{"project": "gsm8k"}}')
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


class MlflowSink(Sink):
    """A Sink that writes to one run of an MLflow experiment; a resumed run continues the same MLflow run."""

    name = "mlflow"

    def __init__(self, directory: RunDir, config: MlflowConfig) -> None:
        """`config` is complete."""
        self.address = f"{config.uri} {config.experiment}"
        self._directory, self._config = directory, config
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
        if self._config.model and status == "finished":
            self._send_model()
        self._client.set_terminated(self._run, STATUS[status])
        return f"all of it is in run {self._run} of experiment {self._config.experiment}"

    def _connect(self) -> Any:
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it logs every table of a new database
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self._config.uri)

    def _make_run(self, client: Any, key: str) -> str:
        name, path = self._config.experiment, self._directory.path.resolve()
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name, self._artifacts())
        known = client.search_runs([experiment], f"tags.`{KEY}` = '{key}'", max_results=1)
        if known:
            return str(known[0].info.run_id)
        tags = {**self._config.tags, KEY: key, "dojang.run_dir": str(path)}
        return str(client.create_run(experiment, tags=tags, run_name=self._config.run_name or path.name).info.run_id)

    def _artifacts(self) -> str | None:
        """Returns the artifact location for a local database (next to it); a server has its own."""
        if not self._config.uri.startswith("sqlite:///"):
            return None
        return (Path(self._config.uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()

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

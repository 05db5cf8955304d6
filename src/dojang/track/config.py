"""Where else figures go: the `track` section of a configuration."""

import json
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.core.section import Section, complaints
from dojang.track.custom import CustomSink, check_custom
from dojang.track.exporter import Couriers, Sink

__all__ = ["MlflowConfig", "PrometheusConfig", "TrackConfig"]

_ARN = re.compile(r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:\d{12}:mlflow-(tracking-server|app)/[\w.-]+")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class MlflowConfig(Section):
    """A run of an MLflow experiment."""

    uri: str = ""
    """Address of the MLflow server: http://HOST:5000, a database (sqlite:///PATH), or the ARN of an MLflow server or
    app of Amazon SageMaker. Without it MLFLOW_TRACKING_URI."""
    experiment: str = ""
    """Name of the experiment, which is created if it does not exist. Without it MLFLOW_EXPERIMENT_NAME, or dojang."""
    run_name: str = ""
    """The name of the run directory if empty."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the run, beside those of MLFLOW_TAGS (a JSON object)."""
    model: bool = True
    """Whether a finished run sends its best model."""

    @field_validator("uri")
    @classmethod
    def _is_no_folder(cls, uri: str) -> str:
        if uri and not uri.startswith(("http://", "https://", "sqlite:///")) and not _ARN.fullmatch(uri):
            raise ValueError(
                f"{uri!r} is no place of MLflow's; it looks like http://HOST:5000 or sqlite:///mlflow.db, or "
                "arn:aws:sagemaker:REGION:ACCOUNT:mlflow-tracking-server/NAME (or mlflow-app/ID)"
            )
        return uri

    @property
    def on_sagemaker(self) -> bool:
        """Whether the server is one of Amazon SageMaker's."""
        return self.uri.startswith("arn:")

    def completed(self, environment: Mapping[str, str]) -> "MlflowConfig":
        """These settings, with MLflow's environment variables in the place of empty ones."""
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
    """Tags in MLFLOW_TAGS, written as the Hugging Face trainers want them."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'MLFLOW_TAGS={text!r} is no JSON object; it looks like {{"project": "gsm8k"}}')
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


class PrometheusConfig(Section):
    """Figures for Prometheus to fetch while the run lasts."""

    port: int = Field(default=9464, ge=0, le=65535)
    """Where to listen; 0 takes any free one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines ask."""


class TrackConfig(Section):
    """Trackers outside of the run directory, which has everything anyway. None of them can hold up a run."""

    mlflow: MlflowConfig | None = None
    """A run in MLflow; also without this section if MLFLOW_TRACKING_URI is set."""
    tensorboard: str = ""
    """Folder for TensorBoard's event files: a relative one is made in the run directory, in an absolute one each run
    has a folder of its own. None if empty."""
    prometheus: PrometheusConfig | None = None
    """An exporter for Prometheus; `track.prometheus={}` for the defaults."""
    custom: str = ""
    """Custom tracker, package.module:object: a class or function that is called with `custom_options`; its result has
    `metrics(step, values)`, and `close()` if it wants to know of the end (docs/tracking.md). None if empty."""
    custom_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the custom tracker."""
    timeout_s: float = Field(default=60.0, ge=0, le=86400)
    """How long a finished run waits, at most, for trackers that have not been told everything yet."""

    def mlflow_settings(self, environment: Mapping[str, str] = os.environ) -> MlflowConfig | None:
        """Settings of MLflow, completed from the environment; None if neither names a server. ConfigError if there is a
        section without an address."""
        if self.mlflow is None and not environment.get("MLFLOW_TRACKING_URI"):
            return None
        found = (self.mlflow or MlflowConfig()).completed(environment)
        if not found.uri:
            raise ConfigError(
                "track.mlflow has no address; set track.mlflow.uri=http://HOST:5000, or MLFLOW_TRACKING_URI"
            )
        return found

    def check(self) -> None:
        """ConfigError if a package that the trackers need is not installed."""
        mlflow = self.mlflow_settings()
        if mlflow is not None:
            needed = ("sqlalchemy", "alembic") if mlflow.uri.startswith("sqlite") else ()
            why = "track.mlflow" if self.mlflow is not None else "MLFLOW_TRACKING_URI is set, which"
            if any(find_spec(package) is None for package in ("mlflow", *needed)):
                raise ConfigError(f"{why} needs MLflow: pip install 'dojang[mlflow]'")
            if mlflow.on_sagemaker and find_spec("sagemaker_mlflow") is None:
                raise ConfigError(
                    f"{why} needs SageMaker's plugin for MLflow to reach {mlflow.uri}: "
                    "pip install 'dojang[sagemaker-mlflow]'"
                )
        if self.tensorboard and find_spec("tensorboard") is None:
            raise ConfigError("track.tensorboard needs tensorboard: pip install 'dojang[tensorboard]'")
        if self.custom:
            check_custom(self.custom)
        elif self.custom_options:
            raise ConfigError(f"track.custom_options={self.custom_options} have no effect without track.custom; set it")

    def open(
        self,
        directory: RunDir,
        say: Callable[[str], None],
        command: str,
        *,
        steps: int,
        live: bool = True,
        on_ray: bool = False,
    ) -> Couriers:
        """Who brings figures to the trackers; `command` does so later. The run is to have so many steps. Not `live`:
        what only serves a run that goes on is left out. `on_ray`: this process belongs to a Ray cluster, whose own
        exporter is told as well."""
        self.check()
        sinks: list[Sink] = []
        if (mlflow := self.mlflow_settings()) is not None:
            from dojang.track.mlflow import MlflowSink

            sinks.append(
                MlflowSink(
                    mlflow.uri, mlflow.experiment, mlflow.run_name, directory, model=mlflow.model, tags=mlflow.tags
                )
            )
            if self.mlflow is None:
                where = _LOGIN.sub("***", mlflow.uri)
                say(f"mlflow: MLFLOW_TRACKING_URI is set, so figures go to {where}, experiment {mlflow.experiment}")
        if self.tensorboard:
            from dojang.track.tensorboard import TensorboardSink

            folder = Path(self.tensorboard).expanduser()
            own = folder / directory.path.name if folder.is_absolute() else directory.path / folder
            sinks.append(TensorboardSink(own))
        if self.custom:
            sinks.append(CustomSink(self.custom, self.custom_options))
        if self.prometheus is not None and live:
            from dojang.track.prometheus import PrometheusSink

            sinks.append(PrometheusSink(self.prometheus.host, self.prometheus.port, directory.path.name, steps))
        if on_ray and live:
            from dojang.track.ray import RaySink

            sinks.append(RaySink(directory.path.name, steps))
        return Couriers(sinks, directory, say, command, self.timeout_s)

"""The `track` section of a configuration: exporters of metrics to MLflow, Weights & Biases, TensorBoard,
Prometheus and custom code."""

import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.core.section import Section
from dojang.track.custom import CustomSink, check_custom
from dojang.track.exporter import Exporters, Sink
from dojang.track.mlflow import MlflowConfig, MlflowSink
from dojang.track.wandb import WandbConfig, WandbSink

__all__ = ["PrometheusConfig", "TestResults", "TokenRecords", "TrackConfig"]

TestResults = Literal["all", "failed", "none"]
TokenRecords = Literal["all", "none"]
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


class PrometheusConfig(Section):
    """HTTP exporter for Prometheus to scrape during the run."""

    port: int = Field(default=9464, ge=0, le=65535)
    """Port to listen on; 0 takes any free port."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 accepts other machines."""


class TrackConfig(Section):
    """Records of the run directory, and exporters to services outside it. No exporter blocks a run."""

    test_results: TestResults = "all"
    """Results of single tests in the rollout files: all, of failed tests, or none. Outputs are kept of the first failed
    tests only."""
    token_values: TokenRecords = "all"
    """Trainer's log-prob and entropy of every trained token (token_values/train-NNNNNN.parquet): all, or none."""
    mlflow: MlflowConfig | None = None
    """Export to MLflow; also enabled by the environment variable MLFLOW_TRACKING_URI."""
    wandb: WandbConfig | None = None
    """Export to Weights & Biases; `track.wandb={}` for the defaults."""
    tensorboard: str = ""
    """Folder for TensorBoard event files. Relative: inside the run directory. Absolute: one subfolder per run. Empty:
    disabled."""
    prometheus: PrometheusConfig | None = None
    """Exporter for Prometheus; `track.prometheus={}` for the defaults."""
    custom: str = ""
    """Custom tracker, package.module:object: a class or function called with `custom_options`; its result has
    `metrics(step, values)` and optionally `close()` (docs/tracking.md). Empty: disabled."""
    custom_options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for the custom tracker."""
    timeout_s: float = Field(default=60.0, ge=0, le=86400)
    """Seconds a finished run waits, at most, for exporters to deliver the rest."""

    def mlflow_settings(self, environment: Mapping[str, str] = os.environ) -> MlflowConfig | None:
        """Returns MLflow's settings, completed from the environment; None if neither names a server. Raises ConfigError
        if the section has no address."""
        if self.mlflow is None and not environment.get("MLFLOW_TRACKING_URI"):
            return None
        found = (self.mlflow or MlflowConfig()).completed(environment)
        if not found.uri:
            raise ConfigError(
                "track.mlflow has no address; set track.mlflow.uri=http://HOST:5000, or MLFLOW_TRACKING_URI"
            )
        return found

    @property
    def _wandb(self) -> WandbConfig | None:
        return self.wandb if self.wandb is not None and self.wandb.mode != "disabled" else None

    def check(self) -> None:
        """Raises ConfigError if a package that an exporter needs is not installed."""
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
        if self._wandb is not None and find_spec("wandb") is None:
            raise ConfigError("track.wandb needs wandb: pip install 'dojang[wandb]'")
        if self.tensorboard and find_spec("tensorboard") is None:
            raise ConfigError("track.tensorboard needs tensorboard: pip install 'dojang[tensorboard]'")
        if self.custom:
            check_custom(self.custom)
        elif self.custom_options:
            raise ConfigError(f"track.custom_options={self.custom_options} have no effect without track.custom; set it")

    def check_port(self) -> None:
        """Raises ConfigError if the Prometheus exporter cannot listen on its port, by listening for a moment."""
        if self.prometheus is not None:
            from dojang.track.prometheus import PrometheusSink

            PrometheusSink(self.prometheus.host, self.prometheus.port, "", 0).close()

    def open(
        self,
        directory: RunDir,
        say: Callable[[str], None],
        command: str,
        *,
        steps: int,
        live: bool = True,
        on_ray: bool = False,
    ) -> Exporters:
        """Builds the exporters.

        `command` delivers the rest later; `steps` is the total number of steps. `live=False` leaves out exporters that
        only serve a running run (Prometheus, Ray). `on_ray` exports through the Ray cluster's exporter as well.
        """
        self.check()
        sinks: list[Sink] = []
        if (mlflow := self.mlflow_settings()) is not None:
            sinks.append(MlflowSink(directory, mlflow))
            if self.mlflow is None:
                where = _LOGIN.sub("***", mlflow.uri)
                say(f"mlflow: MLFLOW_TRACKING_URI is set, so metrics go to {where}, experiment {mlflow.experiment}")
        if self._wandb is not None:
            sinks.append(WandbSink(directory, self._wandb))
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
        return Exporters(sinks, directory, say, command, self.timeout_s)

"""Where else figures go: the `track` section of a configuration."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pydantic import Field, field_validator

from dojang.errors import ConfigError
from dojang.rundir import RunDir
from dojang.settings import Section
from dojang.track.courier import Couriers, Sink

__all__ = ["MlflowConfig", "PrometheusConfig", "TrackConfig"]


class MlflowConfig(Section):
    """A run of an MLflow experiment."""

    uri: str
    """An MLflow server (http://HOST:5000), or a database of one's own (sqlite:///PATH)."""
    experiment: str = Field(default="dojang", min_length=1)
    """Made if it is not there."""
    run_name: str = ""
    """The name of the run directory if empty."""
    model: bool = True
    """Whether a finished run sends its best model."""

    @field_validator("uri")
    @classmethod
    def _is_no_folder(cls, uri: str) -> str:
        if not uri.startswith(("http://", "https://", "sqlite:///")):
            raise ValueError(f"{uri!r} is no place of MLflow's; it looks like http://HOST:5000 or sqlite:///mlflow.db")
        return uri


class PrometheusConfig(Section):
    """Figures for Prometheus to fetch while the run lasts."""

    port: int = Field(default=9464, ge=0, le=65535)
    """Where to listen; 0 takes any free one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines ask."""


class TrackConfig(Section):
    """Trackers outside of the run directory, which has everything anyway. None of them can hold up a run."""

    mlflow: MlflowConfig | None = None
    tensorboard: str = ""
    """Folder for TensorBoard's event files: a relative one is made in the run directory, in an absolute one each run
    has a folder of its own. None if empty."""
    prometheus: PrometheusConfig | None = None
    """An exporter for Prometheus; `track.prometheus={}` for the defaults."""
    patience_s: float = Field(default=60.0, ge=0, le=86400)
    """How long a finished run waits, at most, for trackers that have not been told everything yet."""

    def check(self) -> None:
        """That what the trackers need is installed."""
        needed = ("sqlalchemy", "alembic") if self.mlflow is not None and self.mlflow.uri.startswith("sqlite") else ()
        if self.mlflow is not None and any(find_spec(package) is None for package in ("mlflow", *needed)):
            raise ConfigError("track.mlflow needs MLflow: pip install 'dojang[mlflow]'")
        if self.tensorboard and find_spec("tensorboard") is None:
            raise ConfigError("track.tensorboard needs tensorboard: pip install 'dojang[tensorboard]'")

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
        if self.mlflow is not None:
            from dojang.track.mlflow import MlflowSink

            wanted = self.mlflow
            sinks.append(MlflowSink(wanted.uri, wanted.experiment, wanted.run_name, directory, model=wanted.model))
        if self.tensorboard:
            from dojang.track.tensorboard import TensorboardSink

            folder = Path(self.tensorboard).expanduser()
            own = folder / directory.path.name if folder.is_absolute() else directory.path / folder
            sinks.append(TensorboardSink(own))
        if self.prometheus is not None and live:
            from dojang.track.prometheus import PrometheusSink

            sinks.append(PrometheusSink(self.prometheus.host, self.prometheus.port, directory.path.name, steps))
        if on_ray and live:
            from dojang.track.ray import RaySink

            sinks.append(RaySink(directory.path.name, steps))
        return Couriers(sinks, directory, say, command, self.patience_s)

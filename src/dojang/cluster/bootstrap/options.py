"""Options of `dojang launch ray-cluster`, the same on all hosts, and the result of a job."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["JobResult", "Options"]


@dataclass(frozen=True)
class Options:
    """Timeouts in seconds, ports and Ray's settings; `dojang launch ray-cluster --help` describes them."""

    coordinator: bool = False
    timeout: float = 600.0
    grace: float = 80.0
    reconnect: float = 60.0
    port: int | None = None
    rendezvous_port: int = 6378
    dashboard: bool = True
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = 8265
    metrics_port: int = 8080
    prometheus: Path | None = None
    wait_shutdown: float = 0.0


@dataclass(frozen=True)
class JobResult:
    """Result of a job on every host: exit code, and the reason if it failed."""

    code: int
    text: str

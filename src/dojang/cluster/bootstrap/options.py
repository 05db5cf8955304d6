"""What may be chosen about a cluster. The same on all of its hosts."""

from dataclasses import dataclass
from pathlib import Path

__all__ = ["End", "Options"]


@dataclass(frozen=True)
class Options:
    """Seconds, ports and Ray's own settings; `dojang launch ray-cluster --help` describes them."""

    coordinator: bool = False
    timeout: float = 600.0
    grace: float = 80.0
    patience: float = 60.0
    port: int | None = None
    muster_port: int = 6378
    dashboard: bool = True
    dashboard_host: str = "127.0.0.1"
    dashboard_port: int = 8265
    metrics_port: int = 8080
    prometheus: Path | None = None
    wait_shutdown: float = 0.0


@dataclass(frozen=True)
class End:
    """How it ended, on every host: the exit code, and what to say about it."""

    code: int
    text: str

"""Options of `dojang launch ray-cluster`, the same on all hosts, and the result of a job."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

__all__ = ["JobResult", "Options"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Command-line options besides the command and the hosts."""

    coordinator: Annotated[
        bool, Option("--coordinator", help="Keep Ray's work off the head: it offers Ray no CPU and no GPU.")
    ] = False
    timeout: Annotated[float, Option(min=1, help="Seconds to wait for all hosts.")] = 600
    grace: Annotated[float, Option(min=0, help="Seconds to end in after a stop signal; SageMaker kills after 120.")] = (
        80
    )
    reconnect: Annotated[float, Option(min=0, help="Seconds a host may be disconnected before it counts as lost.")] = 60
    port: Annotated[
        int | None,
        Option(min=1, max=65535, help="Ray's port. Default: 6379; any free one for a single host.", show_default=False),
    ] = None
    rendezvous_port: Annotated[
        int, Option(min=1, max=65535, help="Port on which the head waits for the other hosts.")
    ] = 6378
    dashboard: Annotated[bool, Option(help="Start Ray's dashboard on the head.")] = True
    dashboard_host: Annotated[
        str, Option(metavar="ADDRESS", help="Address of the dashboard. Anyone who reaches it can run programs.")
    ] = "127.0.0.1"
    dashboard_port: Annotated[int, Option(min=1, max=65535, help="Port of the dashboard.")] = 8265
    metrics_port: Annotated[
        int, Option(min=0, max=65535, help="Port on which every host serves Ray's metrics; 0 for any free one.")
    ] = 8080
    prometheus: Annotated[
        Path | None,
        Option(metavar="FILE", help="Path of a prometheus.yml to write; it scrapes all hosts.", show_default=False),
    ] = None
    wait_shutdown: Annotated[float, Option(min=0, help="Seconds to keep the cluster up after success.")] = 0


@dataclass(frozen=True)
class JobResult:
    """Result of a job on every host: exit code, and the reason if it failed."""

    code: int
    text: str

"""`dojang launch`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["launch"]

launch = typer.Typer(help="Start jobs on clusters.", no_args_is_help=True)


@launch.command("ray-cluster", context_settings={"allow_interspersed_args": False})
def ray_cluster(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="What to run on the head.", show_default=False)
    ] = None,
    hosts: Annotated[
        str, typer.Option(metavar="A,B,C", help="The hosts of the job, the head first, if nobody else says.")
    ] = "",
    host: Annotated[str, typer.Option(metavar="NAME", help="Which of them this one is; found out if not given.")] = "",
    head_group: Annotated[
        str, typer.Option(metavar="NAME", help="The instance group that leads, where a SageMaker job has several.")
    ] = "",
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Keep Ray's work off the head: it offers no CPU and no GPU.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until all hosts have to be there.")] = 600,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds to end in when told to stop; SageMaker kills after 120.")
    ] = 80,
    reconnect: Annotated[
        float, typer.Option(min=0, help="Seconds a link between hosts may be cut before one counts as lost.")
    ] = 60,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Ray's; 6379, or any if there is one host.", show_default=False)
    ] = None,
    muster_port: Annotated[int, typer.Option(min=1, max=65535, help="Where the head listens for other hosts.")] = 6378,
    dashboard: Annotated[bool, typer.Option(help="Ray's web page, on the head.")] = True,
    dashboard_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where it listens; who reaches it can run programs.")
    ] = "127.0.0.1",
    dashboard_port: Annotated[int, typer.Option(min=1, max=65535, help="And on which port.")] = 8265,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where every host offers Ray's figures; 0 takes any free one.")
    ] = 8080,
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a prometheus.yml that scrapes all hosts.", show_default=False),
    ] = None,
    wait_shutdown: Annotated[
        float, typer.Option(min=0, help="Seconds to keep the cluster up after success, to look at it.")
    ] = 0,
) -> None:
    """Make a Ray cluster of a job's hosts and run a command on its head.

    To be started identically on every host. Hosts and roles are those of --hosts, of SageMaker or of Slurm; without
    any of them this host is alone. The command has RAY_ADDRESS set. Every host exits with its exit code: 9 if the
    cluster did not come together or the head was lost, 130 if this host was told to stop.
    """
    from dojang.launch.command import ray_cluster as take_part
    from dojang.launch.options import Options

    options = Options(
        coordinator=coordinator,
        timeout=timeout,
        grace=grace,
        patience=reconnect,
        port=port,
        muster_port=muster_port,
        dashboard=dashboard,
        dashboard_host=dashboard_host,
        dashboard_port=dashboard_port,
        metrics_port=metrics_port,
        prometheus=prometheus,
        wait_shutdown=wait_shutdown,
    )
    raise typer.Exit(take_part(command or [], hosts.split(",") if hosts else [], host, head_group, options))

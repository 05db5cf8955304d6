"""`dojang launch`."""

from typing import Annotated

import typer

from dojang.cluster.bootstrap.options import Options as ClusterOptions
from dojang.cluster.sagemaker.options import Options as JobOptions
from dojang.cluster.sagemaker.options import Profile, Region
from dojang.commands.option_group import Overrides, Recipe, with_options

__all__ = ["launch"]

launch = typer.Typer(help="Start jobs on clusters.", no_args_is_help=True)


@launch.command("ray-cluster", context_settings={"allow_interspersed_args": False})
@with_options(ClusterOptions)
def ray_cluster(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Command to run on the head.", show_default=False),
    ] = None,
    hosts: Annotated[
        str, typer.Option(metavar="A,B,C", help="Hosts of the job, head first. Default: from SageMaker or Slurm.")
    ] = "",
    host: Annotated[
        str, typer.Option(metavar="NAME", help="Name of this host among them. Default: found by name or address.")
    ] = "",
    head_group: Annotated[
        str, typer.Option(metavar="NAME", help="SageMaker instance group of the head, if the job has several.")
    ] = "",
    *,
    options: ClusterOptions,
) -> None:
    """Start a Ray cluster on a job's hosts and run a command on its head.

    Run it identically on every host. Hosts and roles come from --hosts, SageMaker or Slurm; otherwise the cluster is
    this host alone. The command has RAY_ADDRESS set. Every host exits with the command's exit code; with 9 if hosts
    were missing or the head was lost; with 130 if this host was told to stop.
    """
    from dojang.cluster.bootstrap.start_cluster import ray_cluster as start_ray_cluster

    raise typer.Exit(start_ray_cluster(command or [], hosts.split(",") if hosts else [], host, head_group, options))


@launch.command("sagemaker")
@with_options(JobOptions)
def launch_sagemaker(
    recipe: Recipe,
    overrides: Overrides = None,
    *,
    options: JobOptions,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job until it ends.")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the request; needs no credentials.")
    ] = False,
) -> None:
    """Train on Amazon SageMaker. Ctrl-C stops following the job, not the job."""
    from dojang.cluster.sagemaker import submit

    if dry_run:
        submit.show(recipe, overrides or [], options)
    else:
        raise typer.Exit(submit.start(recipe, overrides or [], options, wait=wait))


@launch.command("follow")
def launch_follow(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a SageMaker training job.")],
    region: Region = "",
    profile: Profile = "",
) -> None:
    """Follow a SageMaker job until it ends. Ctrl-C leaves it running."""
    from dojang.cluster.sagemaker import submit

    raise typer.Exit(submit.attach(job, region, profile))


@launch.command("entry-point", hidden=True)
def launch_entry_point(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to override.")] = None,
) -> None:
    """Run a job's recipe inside its SageMaker container. `launch sagemaker` calls it."""
    from dojang.cluster.sagemaker import entry_point

    entry_point.run(overrides or [])

"""`dojang launch`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["launch"]

launch = typer.Typer(help="Start jobs on clusters.", no_args_is_help=True)

REGION = typer.Option(help="Amazon's region; what the environment or the profile says if not given.")
PROFILE = typer.Option(help="Of the AWS configuration.")


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
    from dojang.cluster.bootstrap.options import Options
    from dojang.cluster.bootstrap.start_cluster import ray_cluster as take_part

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


@launch.command("sagemaker")
def launch_sagemaker(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. train.lr=1e-5.")
    ] = None,
    role: Annotated[str, typer.Option(metavar="ARN", help="The role the job has.")] = "",
    instance_type: Annotated[str, typer.Option(metavar="TYPE", help="Such as ml.p4de.24xlarge.")] = "",
    instance_count: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
    group: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=TYPE:COUNT", help="Instances of several types, e.g. judges=ml.c7i.24xlarge:4."),
    ] = None,
    head_group: Annotated[str, typer.Option(metavar="NAME", help="Which group leads; the first if not given.")] = "",
    image: Annotated[
        str, typer.Option(metavar="URI", help="The container's image; SageMaker's for PyTorch if not given.")
    ] = "",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=PLACE",
            help="Data for the job, s3://... or a path here; a setting, or data, train, test or model, is told where.",
        ),
    ] = None,
    checkpoints: Annotated[
        str, typer.Option(metavar="S3", help="Where the run is kept; a job with the same place goes on with it.")
    ] = "",
    output: Annotated[str, typer.Option(metavar="S3", help="Where the model goes; the bucket if not given.")] = "",
    bucket: Annotated[
        str, typer.Option(metavar="NAME", help="For uploads; sagemaker-REGION-ACCOUNT if not given.")
    ] = "",
    max_hours: Annotated[float, typer.Option(help="The job is stopped after that.")] = 24.0,
    keep_alive: Annotated[int, typer.Option(metavar="MINUTES", help="Keep the machines for the next job.")] = 0,
    spot: Annotated[
        bool, typer.Option("--spot", help="On machines that may be taken away; needs checkpoints.")
    ] = False,
    max_wait: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS", help="With --spot: waiting included; --max-hours if not given.", show_default=False
        ),
    ] = None,
    volume_gb: Annotated[int, typer.Option(min=1, help="Disk of each instance that has none of its own.")] = 200,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="For the job; NAME alone takes the value it has here."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="A tag of the job.")] = None,
    subnet: Annotated[list[str] | None, typer.Option(metavar="ID", help="Of a VPC.")] = None,
    security_group: Annotated[list[str] | None, typer.Option(metavar="ID", help="Of the same VPC.")] = None,
    remote_debug: Annotated[bool, typer.Option("--remote-debug", help="Let containers be entered by SSM.")] = False,
    wait_shutdown: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Keep the cluster that long after it has finished.")
    ] = 0,
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Modules of one's own for the job.", show_default=False)
    ] = None,
    requirements: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Further packages for the job.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option(help="What the job's name begins with; the recipe's if not given.")] = "",
    region: Annotated[str, REGION] = "",
    profile: Annotated[str, PROFILE] = "",
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Whether to follow the job until it has ended.")
    ] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything and print the request; needs no credentials.")
    ] = False,
) -> None:
    """Train on Amazon SageMaker. Ctrl-C stops following the job, not the job."""
    from dojang.cluster.sagemaker import submit
    from dojang.cluster.sagemaker.job import Options

    options = Options(
        role=role,
        instance_type=instance_type,
        instance_count=instance_count,
        groups=group or [],
        head_group=head_group,
        image=image,
        inputs=inputs or [],
        checkpoints=checkpoints,
        output=output,
        bucket=bucket,
        max_hours=max_hours,
        keep_alive=keep_alive,
        spot=spot,
        max_wait=max_wait,
        volume_gb=volume_gb,
        environment=env or [],
        tags=tag or [],
        subnets=subnet or [],
        security_groups=security_group or [],
        remote_debug=remote_debug,
        wait_shutdown=wait_shutdown,
        source=source,
        requirements=requirements,
        name=name,
        region=region,
        profile=profile,
    )
    if dry_run:
        submit.show(recipe, overrides or [], options)
    else:
        raise typer.Exit(submit.start(recipe, overrides or [], options, wait=wait))


@launch.command("follow")
def launch_follow(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name of a training job of SageMaker's.")],
    region: Annotated[str, REGION] = "",
    profile: Annotated[str, PROFILE] = "",
) -> None:
    """Follow a job until it has ended. Ctrl-C leaves it running."""
    from dojang.cluster.sagemaker import submit

    raise typer.Exit(submit.attach(job, region, profile))


@launch.command("inside", hidden=True)
def launch_inside(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")] = None,
) -> None:
    """Train what came with a job, in its container. `launch sagemaker` calls it."""
    from dojang.cluster.sagemaker import entry_point

    entry_point.run(overrides or [])

"""`dojang launch`."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["launch"]

launch = typer.Typer(help="Start jobs on clusters.", no_args_is_help=True)

REGION = typer.Option(help="AWS region. Default: from the environment or the profile.")
PROFILE = typer.Option(help="Profile of the AWS configuration.")


@launch.command("ray-cluster", context_settings={"allow_interspersed_args": False})
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
    coordinator: Annotated[
        bool, typer.Option("--coordinator", help="Keep Ray's work off the head: it offers Ray no CPU and no GPU.")
    ] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for all hosts.")] = 600,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds to end in after a stop signal; SageMaker kills after 120.")
    ] = 80,
    reconnect: Annotated[
        float, typer.Option(min=0, help="Seconds a host may be disconnected before it counts as lost.")
    ] = 60,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Ray's port. Default: 6379; any free one for a single host.", show_default=False
        ),
    ] = None,
    rendezvous_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port on which the head waits for the other hosts.")
    ] = 6378,
    dashboard: Annotated[bool, typer.Option(help="Start Ray's dashboard on the head.")] = True,
    dashboard_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address of the dashboard. Anyone who reaches it can run programs.")
    ] = "127.0.0.1",
    dashboard_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the dashboard.")] = 8265,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on which every host serves Ray's metrics; 0 for any free one.")
    ] = 8080,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Path of a prometheus.yml to write; it scrapes all hosts.", show_default=False
        ),
    ] = None,
    wait_shutdown: Annotated[float, typer.Option(min=0, help="Seconds to keep the cluster up after success.")] = 0,
) -> None:
    """Start a Ray cluster on a job's hosts and run a command on its head.

    Run it identically on every host. Hosts and roles come from --hosts, SageMaker or Slurm; otherwise the cluster is
    this host alone. The command has RAY_ADDRESS set. Every host exits with the command's exit code; with 9 if hosts
    were missing or the head was lost; with 130 if this host was told to stop.
    """
    from dojang.cluster.bootstrap.options import Options
    from dojang.cluster.bootstrap.start_cluster import ray_cluster as start_ray_cluster

    options = Options(
        coordinator=coordinator,
        timeout=timeout,
        grace=grace,
        reconnect=reconnect,
        port=port,
        rendezvous_port=rendezvous_port,
        dashboard=dashboard,
        dashboard_host=dashboard_host,
        dashboard_port=dashboard_port,
        metrics_port=metrics_port,
        prometheus=prometheus,
        wait_shutdown=wait_shutdown,
    )
    raise typer.Exit(start_ray_cluster(command or [], hosts.split(",") if hosts else [], host, head_group, options))


@launch.command("sagemaker")
def launch_sagemaker(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="Name of a shipped recipe, or a YAML file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to override, e.g. train.lr=1e-5.")
    ] = None,
    role: Annotated[str, typer.Option(metavar="ARN", help="IAM role of the job.")] = "",
    instance_type: Annotated[str, typer.Option(metavar="TYPE", help="Instance type, such as ml.p4de.24xlarge.")] = "",
    instance_count: Annotated[int, typer.Option(min=1, help="Number of instances.")] = 1,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE:COUNT", help="Instance group, for several instance types, e.g. judges=ml.c7i.24xlarge:4."
        ),
    ] = None,
    head_group: Annotated[
        str, typer.Option(metavar="NAME", help="Instance group of the head. Default: the first.")
    ] = "",
    image: Annotated[
        str, typer.Option(metavar="URI", help="Container image. Default: SageMaker's PyTorch image.")
    ] = "",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=PATH",
            help="Data for the job: s3://... or a local path. NAME is a setting, or data, train, test or model.",
        ),
    ] = None,
    checkpoints: Annotated[
        str, typer.Option(metavar="S3", help="S3 URI of the run directory; a job with the same URI resumes the run.")
    ] = "",
    output: Annotated[str, typer.Option(metavar="S3", help="S3 URI for the model. Default: in the bucket.")] = "",
    bucket: Annotated[
        str, typer.Option(metavar="NAME", help="Bucket for uploads. Default: sagemaker-REGION-ACCOUNT.")
    ] = "",
    max_hours: Annotated[float, typer.Option(help="Stop the job after this many hours.")] = 24.0,
    keep_alive: Annotated[int, typer.Option(metavar="MINUTES", help="Keep the instances warm for the next job.")] = 0,
    spot: Annotated[bool, typer.Option("--spot", help="Use spot instances; needs --checkpoints.")] = False,
    max_wait: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS", help="With --spot: time limit including waiting. Default: --max-hours.", show_default=False
        ),
    ] = None,
    volume_gb: Annotated[int, typer.Option(min=1, help="Disk size of each instance without local disks.")] = 200,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Environment variable of the job; NAME alone takes its local value."),
    ] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Tag of the job.")] = None,
    subnet: Annotated[list[str] | None, typer.Option(metavar="ID", help="Subnet of a VPC.")] = None,
    security_group: Annotated[list[str] | None, typer.Option(metavar="ID", help="Security group of the VPC.")] = None,
    remote_debug: Annotated[
        bool, typer.Option("--remote-debug", help="Allow shells in the containers through SSM.")
    ] = False,
    wait_shutdown: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="Keep the cluster up this long after it has finished.")
    ] = 0,
    source: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of your own modules for the job.", show_default=False)
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="requirements.txt with further packages for the job.", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option(help="Prefix of the job's name. Default: the recipe's name.")] = "",
    region: Annotated[str, REGION] = "",
    profile: Annotated[str, PROFILE] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the job until it ends.")] = True,
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
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of a SageMaker training job.")],
    region: Annotated[str, REGION] = "",
    profile: Annotated[str, PROFILE] = "",
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

"""Options of `dojang launch sagemaker`, and the instances they name."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from typer import Option

__all__ = ["InstanceGroup", "Options", "Profile", "Region"]

Region = Annotated[str, Option(help="AWS region. Default: from the environment or the profile.")]
Profile = Annotated[str, Option(help="Profile of the AWS configuration.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Command-line options of a job, besides its recipe."""

    role: Annotated[str, Option(metavar="ARN", help="IAM role of the job.")] = ""
    instance_type: Annotated[str, Option(metavar="TYPE", help="Instance type, such as ml.p4de.24xlarge.")] = ""
    instance_count: Annotated[int, Option(min=1, help="Number of instances.")] = 1
    groups: Annotated[
        list[str],
        Option(
            "--group",
            metavar="NAME=TYPE:COUNT",
            help="Instance group, for several instance types, e.g. judges=ml.c7i.24xlarge:4.",
        ),
    ] = field(default_factory=list)
    head_group: Annotated[str, Option(metavar="NAME", help="Instance group of the head. Default: the first.")] = ""
    image: Annotated[str, Option(metavar="URI", help="Container image. Default: SageMaker's PyTorch image.")] = ""
    inputs: Annotated[
        list[str],
        Option(
            "--input",
            metavar="NAME=PATH",
            help="Data for the job: s3://... or a local path. NAME is a setting, or data, train, test or model.",
        ),
    ] = field(default_factory=list)
    checkpoints: Annotated[
        str, Option(metavar="S3", help="S3 URI of the run directory; a job with the same URI resumes the run.")
    ] = ""
    output: Annotated[str, Option(metavar="S3", help="S3 URI for the model. Default: in the bucket.")] = ""
    bucket: Annotated[str, Option(metavar="NAME", help="Bucket for uploads. Default: sagemaker-REGION-ACCOUNT.")] = ""
    max_hours: Annotated[float, Option(help="Stop the job after this many hours.")] = 24.0
    keep_alive: Annotated[int, Option(metavar="MINUTES", help="Keep the instances warm for the next job.")] = 0
    spot: Annotated[bool, Option("--spot", help="Use spot instances; needs --checkpoints.")] = False
    max_wait: Annotated[
        float | None,
        Option(
            metavar="HOURS", help="With --spot: time limit including waiting. Default: --max-hours.", show_default=False
        ),
    ] = None
    volume_gb: Annotated[int, Option(min=1, help="Disk size of each instance without local disks.")] = 200
    environment: Annotated[
        list[str],
        Option(
            "--env", metavar="NAME[=VALUE]", help="Environment variable of the job; NAME alone takes its local value."
        ),
    ] = field(default_factory=list)
    tags: Annotated[list[str], Option("--tag", metavar="NAME=VALUE", help="Tag of the job.")] = field(
        default_factory=list
    )
    subnets: Annotated[list[str], Option("--subnet", metavar="ID", help="Subnet of a VPC.")] = field(
        default_factory=list
    )
    security_groups: Annotated[
        list[str], Option("--security-group", metavar="ID", help="Security group of the VPC.")
    ] = field(default_factory=list)
    remote_debug: Annotated[bool, Option("--remote-debug", help="Allow shells in the containers through SSM.")] = False
    wait_shutdown: Annotated[
        int, Option(min=0, metavar="SECONDS", help="Keep the cluster up this long after it has finished.")
    ] = 0
    source: Annotated[
        Path | None, Option(metavar="DIR", help="Directory of your own modules for the job.", show_default=False)
    ] = None
    requirements: Annotated[
        Path | None,
        Option(metavar="FILE", help="requirements.txt with further packages for the job.", show_default=False),
    ] = None
    name: Annotated[str, Option(help="Prefix of the job's name. Default: the recipe's name.")] = ""
    region: Region = ""
    profile: Profile = ""


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """Instances of one type."""

    name: str
    type: str
    count: int

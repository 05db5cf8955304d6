"""Submits training jobs through SageMaker's Python SDK, or builds their requests for --dry-run.

A dry run uses the same SDK calls with a session that sends nothing, so it shows the exact request.
"""

import logging
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from dojang.cluster.sagemaker.job import Job
from dojang.cluster.sagemaker.payload import CHANNEL
from dojang.cluster.sagemaker.source_code import REQUIREMENTS, stage
from dojang.core.errors import ConfigError, DojangError

__all__ = ["build_request", "connect", "submit"]

IMAGE = "2.10"
"""Version of SageMaker's PyTorch image: the newest that its SDK knows."""
CODE = "code.tar.gz"
_QUIET = {"SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}


class _RequestBuilt(Exception):
    """Raised instead of sending the request."""


def connect(region: str, profile: str) -> Any:
    """Makes a boto3 session; raises ConfigError without a region."""
    boto3 = _boto3()
    from botocore.exceptions import ProfileNotFound

    try:
        session = boto3.Session(region_name=region or None, profile_name=profile or None)
    except ProfileNotFound as error:
        raise ConfigError(f"--profile {profile}: {error}") from None
    if session.region_name is None:
        raise ConfigError("no AWS region is set: give --region, such as us-east-1, or set AWS_DEFAULT_REGION")
    return session


def submit(job: Job) -> str:
    """Uploads a job's files, creates the job and returns its name."""
    boto = connect(job.options.region, job.options.profile)
    _check_types(job, boto)
    with _refusals(), _uploads(job) as folder:
        session = _session(job, boto)
        trainer, inputs = _trainer(job, session, folder)
        trainer.train(input_data_config=inputs, wait=False, logs=False)
        return str(trainer._latest_training_job.training_job_name)


def build_request(job: Job) -> dict[str, Any]:
    """Builds the request that `submit` would send. Uploads nothing, sends nothing, needs no credentials."""
    region = connect(job.options.region, job.options.profile).region_name
    offline = _boto3().Session(aws_access_key_id="none", aws_secret_access_key="none", region_name=region)
    _check_types(job, offline)
    request: dict[str, Any] = {}

    def keep(params: dict[str, Any], **_: Any) -> None:
        request.update(params)
        raise _RequestBuilt

    def refuse(**_: Any) -> None:
        raise _RequestBuilt("a dry run sends nothing")

    offline.events.register("provide-client-params.sagemaker.CreateTrainingJob", keep)
    offline.events.register("before-send", refuse)
    with _refusals(), _uploads(job) as folder, _unchecked_role():
        trainer, inputs = _trainer(job, _session(job, offline, offline=True), folder)
        try:
            trainer.train(input_data_config=inputs, wait=False, logs=False)
        except _RequestBuilt:
            return request
    raise AssertionError("the SDK sends a request")


def _boto3() -> Any:
    try:
        import boto3
        import sagemaker.train  # noqa: F401 -- takes seconds, and is needed next
    except ImportError as error:
        raise ConfigError(f"SageMaker's SDK is missing ({error}): pip install 'dojang[sagemaker]'") from None
    logging.getLogger("sagemaker").setLevel(logging.ERROR)  # its SDK logs a lot
    return boto3


def _check_types(job: Job, boto: Any) -> None:
    """Raises ConfigError for instance types that this SDK does not know."""
    known = boto._session.get_service_model("sagemaker").shape_for("TrainingInstanceType").enum
    for group in job.groups:
        if group.type not in known:
            near = get_close_matches(group.type, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "see aws.amazon.com/sagemaker/pricing"
            raise ConfigError(
                f"SageMaker has no {group.type}; {hint} If it is newer than your SDK: pip install -U boto3"
            )


@contextmanager
def _uploads(job: Job) -> Iterator[Path]:
    """Makes a folder with the uploads besides the inputs: the payload, and the code as one archive, which takes a
    second to upload instead of a minute for hundreds of files."""
    with tempfile.TemporaryDirectory(prefix="dojang-launch-") as name:
        folder = Path(name)
        (folder / "code").mkdir()
        (folder / "job").mkdir()
        stage(folder / "code", job.config, job.options.source, job.options.requirements, job.environment)
        with tarfile.open(folder / CODE, "w:gz") as archive:
            archive.add(folder / "code", arcname=".")
        job.payload.write(folder / "job")
        yield folder


def _session(job: Job, boto: Any, *, offline: bool = False) -> Any:
    """Makes the SDK's session with the user's settings, without telemetry."""
    from sagemaker.core.helper.session_helper import Session

    class OfflineSession(Session):  # type: ignore[misc]
        """Returns the S3 URIs of uploads without uploading."""

        def default_bucket(self) -> str:
            return str(self._default_bucket_name_override or f"sagemaker-{self.boto_region_name}-{job.account}")

        def upload_data(self, path: str, bucket: str, key_prefix: str, **_: Any) -> str:
            uri = f"s3://{bucket}/{key_prefix}"
            return f"{uri}/{os.path.basename(path)}" if os.path.isfile(path) else uri

    session = (OfflineSession if offline else Session)(boto_session=boto, default_bucket=job.options.bucket or None)
    session.sagemaker_config = _merged(session.sagemaker_config or {"SchemaVersion": "1.0"}, _QUIET)
    return session


def _trainer(job: Job, session: Any, folder: Path) -> tuple[Any, list[Any]]:
    """Makes the SDK's trainer object of a job, and its inputs."""
    from sagemaker.core import shapes
    from sagemaker.core.training import configs
    from sagemaker.train.model_trainer import ModelTrainer

    options = job.options
    wait = options.max_hours if options.max_wait is None else options.max_wait
    limits = {"max_wait_time_in_seconds": round(wait * 3600)} if options.spot else {}
    network = {"subnets": list(options.subnets), "security_group_ids": list(options.security_groups)}
    checkpoints = {
        "checkpoint_config": shapes.CheckpointConfig(s3_uri=options.checkpoints, local_path="/opt/ml/checkpoints")
    }
    output = {"output_data_config": shapes.OutputDataConfig(s3_output_path=options.output)}
    trainer = ModelTrainer(
        sagemaker_session=session,
        role=options.role,
        base_job_name=job.name,
        training_image=options.image or _image(job, session.boto_region_name),
        source_code=configs.SourceCode(
            source_dir=str(folder / CODE),
            requirements=REQUIREMENTS,
            command=job.command,
            ignore_patterns=[],  # upload all staged files
        ),
        compute=_compute(job),
        networking=configs.Networking(**network) if options.subnets else None,
        stopping_condition=configs.StoppingCondition(max_runtime_in_seconds=round(options.max_hours * 3600), **limits),
        environment=job.environment,
        hyperparameters=job.hyperparameters,
        tags=[configs.Tag(key=key, value=value) for key, value in job.tags.items()] or None,
        **(checkpoints if options.checkpoints else {}),
        **(output if options.output else {}),
    )
    if options.remote_debug:
        trainer.with_remote_debug_config(configs.RemoteDebugConfig(enable_remote_debug=True))
    inputs = {CHANNEL: str(folder / "job"), **job.inputs}
    return trainer, [configs.InputData(channel_name=name, data_source=place) for name, place in inputs.items()]


def _compute(job: Job) -> Any:
    from sagemaker.core.training.configs import Compute, InstanceGroup

    options = job.options
    more = {"volume_size_in_gb": options.volume_gb, "enable_managed_spot_training": options.spot or None}
    if options.keep_alive:
        more["keep_alive_period_in_seconds"] = options.keep_alive * 60
    if not job.groups[0].name:
        return Compute(instance_type=job.groups[0].type, instance_count=job.groups[0].count, **more)
    groups = [
        InstanceGroup(instance_group_name=group.name, instance_type=group.type, instance_count=group.count)
        for group in job.groups
    ]
    return Compute(instance_groups=groups, **more)


def _image(job: Job, region: str) -> str:
    """URI of SageMaker's PyTorch image: for GPUs if any instance has one."""
    from sagemaker.core import image_uris

    uris = [
        image_uris.retrieve(
            framework="pytorch", region=region, version=IMAGE, instance_type=group.type, image_scope="training"
        )
        for group in job.groups
    ]
    return str(next((uri for uri in uris if "-gpu-" in uri), uris[0]))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turns errors of AWS and its SDK into DojangErrors."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    from sagemaker.core.helper.iam_role_resolver import RoleValidationError

    try:
        yield
    except NoCredentialsError:
        raise DojangError(
            "no AWS credentials found; log in (aws configure, aws sso login), or give --profile. Only --dry-run "
            "needs none"
        ) from None
    except (ClientError, BotoCoreError, RoleValidationError) as error:
        raise DojangError(f"nothing was launched: {error}") from error


@contextmanager
def _unchecked_role() -> Iterator[None]:
    """Disables the SDK's validation of the role, which would call AWS."""
    name = "SAGEMAKER_VALIDATE_ROLE"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else os.environ.update({name: before})


def _merged(tree: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return tree | {
        key: _merged(tree.get(key) or {}, value) if isinstance(value, dict) else value for key, value in more.items()
    }

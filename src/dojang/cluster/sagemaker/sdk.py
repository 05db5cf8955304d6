"""Training jobs of Amazon SageMaker's, through its Python SDK: submitted, or only shown.

A rehearsal goes the same way up to the request itself, with a session that reaches nobody, so what it shows is what
would be sent. Following a job is `cluster/sagemaker/follow.py`'s.
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

__all__ = ["connect", "rehearse", "submit"]

IMAGE = "2.10"
"""Of SageMaker's own images for PyTorch, the newest one its SDK knows of."""
CODE = "code.tar.gz"
_QUIET = {"SageMaker": {"PythonSDK": {"Modules": {"TelemetryOptOut": True}}}}


class _Rehearsed(Exception):
    """Raised in place of sending the request."""


def connect(region: str, profile: str) -> Any:
    """A boto3 session that knows its region."""
    boto3 = _boto3()
    from botocore.exceptions import ProfileNotFound

    try:
        session = boto3.Session(region_name=region or None, profile_name=profile or None)
    except ProfileNotFound as error:
        raise ConfigError(f"--profile {profile}: {error}") from None
    if session.region_name is None:
        raise ConfigError("no region is known: give --region, such as us-east-1, or set AWS_DEFAULT_REGION")
    return session


def submit(job: Job) -> str:
    """Upload what the job needs and create it; its name."""
    boto = connect(job.options.region, job.options.profile)
    _check_types(job, boto)
    with _refusals(), _uploads(job) as folder:
        session = _session(job, boto)
        trainer, inputs = _trainer(job, session, folder)
        trainer.train(input_data_config=inputs, wait=False, logs=False)
        return str(trainer._latest_training_job.training_job_name)


def rehearse(job: Job) -> dict[str, Any]:
    """The request that `submit` would send. Uploads nothing, asks nobody, needs no credentials."""
    region = connect(job.options.region, job.options.profile).region_name
    nobody = _boto3().Session(aws_access_key_id="nobody", aws_secret_access_key="nobody", region_name=region)
    _check_types(job, nobody)
    request: dict[str, Any] = {}

    def keep(params: dict[str, Any], **_: Any) -> None:
        request.update(params)
        raise _Rehearsed

    def refuse(**_: Any) -> None:
        raise _Rehearsed("a rehearsal reaches nobody")

    nobody.events.register("provide-client-params.sagemaker.CreateTrainingJob", keep)
    nobody.events.register("before-send", refuse)
    with _refusals(), _uploads(job) as folder, _unchecked_role():
        trainer, inputs = _trainer(job, _session(job, nobody, pretend=True), folder)
        try:
            trainer.train(input_data_config=inputs, wait=False, logs=False)
        except _Rehearsed:
            return request
    raise AssertionError("the SDK sends a request")


def _boto3() -> Any:
    try:
        import boto3
        import sagemaker.train  # noqa: F401 -- takes seconds, and is needed next
    except ImportError as error:
        raise ConfigError(f"SageMaker's SDK is missing ({error}): pip install 'dojang[sagemaker]'") from None
    logging.getLogger("sagemaker").setLevel(logging.ERROR)  # it has much to say of what it does
    return boto3


def _check_types(job: Job, boto: Any) -> None:
    """That the instance types exist, as far as this SDK knows."""
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
    """A folder with what is uploaded besides the inputs: `job`, and the code as one file, which takes a second where
    hundreds of files take a minute."""
    with tempfile.TemporaryDirectory(prefix="dojang-launch-") as name:
        folder = Path(name)
        (folder / "code").mkdir()
        (folder / "job").mkdir()
        stage(folder / "code", job.config, job.options.source, job.options.requirements, job.environment)
        with tarfile.open(folder / CODE, "w:gz") as archive:
            archive.add(folder / "code", arcname=".")
        job.shipment.write(folder / "job")
        yield folder


def _session(job: Job, boto: Any, *, pretend: bool = False) -> Any:
    """The SDK's session: its settings are the user's, but that it tells Amazon nothing about its use."""
    from sagemaker.core.helper.session_helper import Session

    class Pretending(Session):  # type: ignore[misc]
        """Knows where things would be uploaded to."""

        def default_bucket(self) -> str:
            return str(self._default_bucket_name_override or f"sagemaker-{self.boto_region_name}-{job.account}")

        def upload_data(self, path: str, bucket: str, key_prefix: str, **_: Any) -> str:
            place = f"s3://{bucket}/{key_prefix}"
            return f"{place}/{os.path.basename(path)}" if os.path.isfile(path) else place

    session = (Pretending if pretend else Session)(boto_session=boto, default_bucket=job.options.bucket or None)
    session.sagemaker_config = _merged(session.sagemaker_config or {"SchemaVersion": "1.0"}, _QUIET)
    return session


def _trainer(job: Job, session: Any, folder: Path) -> tuple[Any, list[Any]]:
    """The SDK's object for a job, and its inputs."""
    from sagemaker.core import shapes
    from sagemaker.core.training import configs
    from sagemaker.train.model_trainer import ModelTrainer

    options = job.options
    wait = options.max_hours if options.max_wait is None else options.max_wait
    limits = {"max_wait_time_in_seconds": round(wait * 3600)} if options.spot else {}
    network = {"subnets": list(options.subnets), "security_group_ids": list(options.security_groups)}
    places = {
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
            ignore_patterns=[],  # what is staged is all wanted
        ),
        compute=_compute(job),
        networking=configs.Networking(**network) if options.subnets else None,
        stopping_condition=configs.StoppingCondition(max_runtime_in_seconds=round(options.max_hours * 3600), **limits),
        environment=job.environment,
        hyperparameters=job.hyperparameters,
        tags=[configs.Tag(key=key, value=value) for key, value in job.tags.items()] or None,
        **(places if options.checkpoints else {}),
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
    """SageMaker's own image for PyTorch: for GPUs if any of the instances has one."""
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
    """What Amazon or its SDK say no to, in a sentence."""
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
    from sagemaker.core.helper.iam_role_resolver import RoleValidationError

    try:
        yield
    except NoCredentialsError:
        raise DojangError(
            "no AWS credentials were found; log in (aws configure, aws sso login), or name a --profile. Only --dry-run "
            "needs none"
        ) from None
    except (ClientError, BotoCoreError, RoleValidationError) as error:
        raise DojangError(f"nothing was launched: {error}") from error


@contextmanager
def _unchecked_role() -> Iterator[None]:
    """The SDK asks Amazon whether a role will do, unless this variable says no."""
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

"""A SageMaker training job, built from the command-line options and checked before any upload.

Instances cost money from their start, so errors should be found here. This module does not use SageMaker's SDK: sdk.py
submits a `Job`.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dojang import __version__
from dojang.cluster.sagemaker.options import InstanceGroup, Options
from dojang.cluster.sagemaker.payload import CHANNEL, ROOT, Payload, local_paths
from dojang.cluster.sagemaker.preflight import Preflight, gpus_of, preflight
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.planning.gpu_split import split_gpus

__all__ = ["Job", "plan"]

FORWARDED = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TAGS"),
    *("RAY_PROMETHEUS_HOST", "RAY_PROMETHEUS_NAME"),
    *("RAY_GRAFANA_HOST", "RAY_GRAFANA_IFRAME_HOST", "RAY_GRAFANA_ORG_ID"),
)
"""Environment variables with addresses that a job inherits. Tokens are not forwarded: everyone who may describe a job
sees its environment; use --env NAME for them."""
SHORT = {"data": "data.path", "train": "data.train", "test": "data.test", "model": "model.name"}
"""Short names of inputs for settings."""
RESERVED = (CHANNEL, "code", "sm_drivers", "recipe")

_TYPE = re.compile(r"ml\.[a-z][a-z0-9-]*\.(medium|large|\d*xlarge|metal)")
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::(\d{12}):role/[\w+=,.@/-]+")
_PLACE = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?")
_CHANNEL = re.compile(r"[A-Za-z0-9_]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A checked job."""

    name: str
    payload: Payload
    config: RunConfig
    groups: tuple[InstanceGroup, ...]
    inputs: dict[str, str]
    """Source of each channel: s3://..., or a local path."""
    environment: dict[str, str]
    tags: dict[str, str]
    command: str
    options: Options
    hyperparameters: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Choices, warnings, and checks that were skipped."""

    @property
    def account(self) -> str:
        found = _ROLE.fullmatch(self.options.role)
        return found[1] if found else ""


def plan(recipe: str, overrides: Sequence[str], options: Options, local: Mapping[str, str] = os.environ) -> Job:
    """Builds the job; raises ConfigError with all errors."""
    wrong: list[str] = []
    groups = _groups(options, wrong)
    inputs, channels = _inputs(options.inputs, wrong)
    environment = _environment(options.environment, local, wrong)
    tags = dict(_pairs("--tag", options.tags, wrong))
    wrong += [*_check_paths(options), *_check_times(options), *_check_network(options)]
    payload = Payload(recipe, tuple(overrides), channels)
    runtime = _runtime(payload, groups)
    config = _config(payload, runtime, wrong)
    checked = Preflight() if config is None else _checked(payload, runtime, inputs, groups, options, environment)
    wrong += checked.wrong
    if wrong or config is None:
        count = "1 error" if len(wrong) == 1 else f"{len(wrong)} errors"
        raise ConfigError(f"nothing was uploaded; {count} in the job:\n" + "\n".join(f"  - {w}" for w in wrong))
    short = Path(recipe).name.removesuffix(".yaml").removesuffix(".yml")  # not .stem: 2.5-0.5b contains dots
    name = _name(options.name or f"dojang-{short}")
    return Job(
        name=name,
        payload=payload,
        config=config,
        groups=groups,
        inputs=inputs,
        environment=environment,
        tags=tags,
        command=_command(groups, options, runtime),
        options=options,
        hyperparameters={"recipe": _name(short), "dojang": __version__},
        notes=tuple(checked.notes),
    )


def _command(groups: Sequence[InstanceGroup], options: Options, runtime: Sequence[str]) -> str:
    """Command of every host. `exec`, because SIGTERM goes to the container's first process, which must be Python."""
    cluster = ["exec python3 -m dojang launch ray-cluster"]
    if len(groups) > 1:
        cluster.append(f"--head-group {options.head_group or groups[0].name}")
    if options.wait_shutdown:
        cluster.append(f"--wait-shutdown {options.wait_shutdown}")
    return " ".join([*cluster, "-- python3 -m dojang launch entry-point", *runtime])


def _runtime(payload: Payload, groups: Sequence[InstanceGroup]) -> list[str]:
    """Overrides that make a run use the cluster and all its GPUs, unless it does already."""
    typed = [*payload.overrides, *payload.channel_overrides(ROOT)]
    named = ["runtime.name=ray"]
    with suppress(ConfigError):  # overrides may set counts for a recipe that does not use Ray by itself
        if recipes.load(payload.recipe, typed).runtime.name == "ray":
            named = []
    with suppress(ConfigError):
        chosen = split_gpus(recipes.load(payload.recipe, [*typed, *named]), gpus_of(groups) or 0)
        return [*named, *(f"runtime.{setting}={count:g}" for setting, count in chosen.items())]
    return named


def _checked(
    payload: Payload,
    runtime: Sequence[str],
    inputs: Mapping[str, str],
    groups: Sequence[InstanceGroup],
    options: Options,
    environment: Mapping[str, str],
) -> Preflight:
    """Checks the job with its local inputs in place of their paths in the container."""
    here = [
        f"{setting}={Path(inputs[channel]).resolve()}"
        for setting, channel in payload.channels.items()
        if channel in inputs and Path(inputs[channel]).exists()
    ]
    config = recipes.load(payload.recipe, [*payload.overrides, *payload.channel_overrides(ROOT), *here, *runtime])
    found = preflight(config, groups, options.source, environment)
    if chosen := [setting for setting in runtime if setting != "runtime.name=ray"]:
        found.notes.insert(0, f"{' '.join(chosen)} chosen for the {gpus_of(groups)} GPUs of the job")
    return found


def _config(payload: Payload, runtime: Sequence[str], wrong: list[str]) -> RunConfig | None:
    """Configuration as the job will load it. Paths of data and models on this machine are errors."""
    try:
        config = recipes.load(payload.recipe, [*payload.overrides, *payload.channel_overrides(ROOT), *runtime])
    except ConfigError as error:
        wrong.append(str(error).replace("\n", "\n    "))
        return None
    short = {setting: name for name, setting in SHORT.items()}
    for setting, path in local_paths(config):
        wrong.append(
            f"{setting}={path} is a path on this machine, which the job does not see; give "
            f"--input {short.get(setting, setting)}={path}, or an s3:// URI"
        )
    return config


def _groups(options: Options, wrong: list[str]) -> tuple[InstanceGroup, ...]:
    groups = []
    for text in options.groups:
        name, _, kind = text.partition("=")
        kind, _, count = kind.partition(":")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or not (count.isdecimal() and int(count)):
            wrong.append(f"--group {text} must look like NAME=TYPE:COUNT, such as trainers=ml.p4de.24xlarge:2")
            continue
        groups.append(InstanceGroup(name, _type(kind), int(count)))
    if options.groups and options.instance_type:
        wrong.append("--group and --instance-type exclude each other: a job has groups, or instances of one type")
    if not options.groups and options.instance_type:
        groups = [InstanceGroup("", _type(options.instance_type), options.instance_count)]
    if not options.groups and not options.instance_type:
        wrong.append("give --instance-type, such as ml.p4de.24xlarge, or several --group")
    names = [group.name for group in groups]
    if len(set(names)) < len(names) or len(names) > 5:
        wrong.append(f"--group {', '.join(names)}: names must differ, and a job has at most five groups")
    if options.head_group and options.head_group not in names:
        wrong.append(
            f"--head-group {options.head_group} is not one of the groups: {', '.join(filter(None, names)) or '-'}"
        )
    wrong += [
        f"{group.type!r} is not an instance type; they look like ml.p4de.24xlarge"
        for group in groups
        if not _TYPE.fullmatch(group.type)
    ]
    return tuple(groups)


def _type(name: str) -> str:
    """SageMaker's name of an instance type: EC2's with the prefix `ml.`."""
    return name if name.startswith("ml.") else f"ml.{name}"


def _inputs(given: Sequence[str], wrong: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Source of each channel, and the channel of each setting."""
    inputs: dict[str, str] = {}
    channels: dict[str, str] = {}
    for name, place in _pairs("--input", given, wrong):
        channel = name.replace(".", "_")
        if not _CHANNEL.fullmatch(channel) or channel in RESERVED or channel in inputs:
            wrong.append(f"--input {name}: use another name, of letters, digits and _, and each only once")
            continue
        if not place.startswith("s3://") and not Path(place).exists():
            wrong.append(f"--input {name}={place}: not a file or folder here, nor an s3:// URI")
        elif place.startswith("s3://") and not _PLACE.fullmatch(place):
            wrong.append(f"--input {name}={place} must look like s3://my-bucket/prefix, in lower case")
        else:
            wrong += _not_uploaded(name, place)
        inputs[channel] = place
        if "." in name or name in SHORT:
            channels[SHORT.get(name, name)] = channel
    wrong += _overlaps(inputs)
    if len(inputs) > 17:
        wrong.append(f"{len(inputs)} inputs exceed the 17 that a job may have besides dojang's own three")
    return inputs, channels


def _not_uploaded(name: str, place: str) -> Iterator[str]:
    """Errors of a local input that the SDK's upload would skip or fail at."""
    if place.startswith("s3://"):
        return
    files = [Path(place)] if Path(place).is_file() else list[Path]()
    for folder, folders, names in os.walk(place):
        files += [Path(folder, each) for each in names]
        for link in (Path(folder, each) for each in folders):
            if link.is_symlink():
                yield (
                    f"--input {name}={place}: {link} is a link to a folder, which is not uploaded; copy the folder "
                    f"there, or give --input {name}={link.resolve()} if nothing else is needed"
                )
    if not files:
        yield f"--input {name}={place} holds no files to upload"
    for path in files:
        if not os.access(path, os.R_OK):
            yield f"--input {name}={place}: no permission to read {path}; allow it, or remove it from the folder"
            return


def _overlaps(inputs: Mapping[str, str]) -> Iterator[str]:
    """Errors of names that are prefixes of others: a channel gets all S3 keys that begin with its own."""
    uploaded = [*RESERVED, *(name for name, place in inputs.items() if not place.startswith("s3://"))]
    for name in uploaded:
        for longer in uploaded:
            if longer != name and longer.startswith(name):
                yield f"--input {longer}: its name begins with that of another one, {name}; use another name"


def _environment(given: Sequence[str], local: Mapping[str, str], wrong: list[str]) -> dict[str, str]:
    """Environment of the job: forwarded addresses, and --env NAME=VALUE or NAME for its local value."""
    found = {name: local[name] for name in FORWARDED if local.get(name)}
    for text in given:
        name, equals, value = text.partition("=")
        if not _VARIABLE.fullmatch(name):
            wrong.append(
                f"--env {name} is not a variable's name; it must look like NAME=VALUE, or NAME if it is set here"
            )
        elif not equals and name not in local:
            wrong.append(f"--env {name}: it is not set here; set it, or give NAME=VALUE")
        else:
            found[name] = value if equals else local[name]
    wrong += [f"--env {name} has {len(v)} characters; SageMaker takes 512" for name, v in found.items() if len(v) > 512]
    code = f"{ROOT}/input/data/code"
    found["PYTHONPATH"] = ":".join(filter(None, [code, found.get("PYTHONPATH", "")]))
    return found


def _pairs(option: str, given: Sequence[str], wrong: list[str]) -> Iterator[tuple[str, str]]:
    for text in given:
        name, equals, value = text.partition("=")
        if name and equals and value:
            yield name, value
        else:
            wrong.append(f"{option} {text} must look like NAME=VALUE")


def _check_paths(options: Options) -> Iterator[str]:
    if not _ROLE.fullmatch(options.role):
        yield f"--role {options.role or '(empty)'} must look like arn:aws:iam::123456789012:role/NAME"
    for name, place in (("checkpoints", options.checkpoints), ("output", options.output)):
        if place and not _PLACE.fullmatch(place):
            yield f"--{name} {place} must look like s3://my-bucket/prefix, in lower case"
    if options.bucket and not _PLACE.fullmatch(f"s3://{options.bucket}"):
        yield f"--bucket {options.bucket} is not a bucket's name; leave s3:// and / out"
    for name, path in (("source", options.source), ("requirements", options.requirements)):
        if path is not None and not (path.is_dir() if name == "source" else path.is_file()):
            yield f"--{name} {path} is not a {'folder' if name == 'source' else 'file'} here"


def _check_times(options: Options) -> Iterator[str]:
    if not 0 < options.max_hours <= 28 * 24:
        yield f"--max-hours {options.max_hours:g} must be more than 0 and at most 672, which is 28 days"
    if not 0 <= options.keep_alive <= 360:
        yield f"--keep-alive {options.keep_alive} must be between 0 and 360 minutes"
    if options.keep_alive and (options.spot or options.groups):
        yield "--keep-alive does not work with --spot or --group"
    if options.spot and not options.checkpoints:
        yield "--spot needs --checkpoints s3://...: without them a preempted job starts over"
    if options.max_wait is not None and (not options.spot or options.max_wait < options.max_hours):
        yield f"--max-wait {options.max_wait:g} needs --spot, and must be at least --max-hours ({options.max_hours:g})"


def _check_network(options: Options) -> Iterator[str]:
    if bool(options.subnets) != bool(options.security_groups):
        yield "--subnet and --security-group go together"
    for name, begins, given in (
        ("subnet", "subnet-", options.subnets),
        ("security-group", "sg-", options.security_groups),
    ):
        for each in given:
            if not each.startswith(begins):
                yield f"--{name} {each} must begin with {begins}"


def _name(text: str) -> str:
    """Valid prefix of a job's name: letters, digits and hyphens, short enough for the time that is appended."""
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[:48].rstrip("-") or "dojang"

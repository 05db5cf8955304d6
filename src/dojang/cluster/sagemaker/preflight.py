"""Checks a job before any upload: its data, models, addresses and instances, with the functions of `dojang plan`.

Local input folders replace their paths below /opt/ml. It calls no AWS service, imports no torch and judges no program,
so that `--dry-run` stays quick; notes list what was not checked.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from dojang import models
from dojang.build.benchmarks import NameTaken, load_benchmarks
from dojang.cluster.runtime_config import RayConfig
from dojang.cluster.sagemaker.options import InstanceGroup
from dojang.cluster.sagemaker.payload import ROOT
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError, DojangError
from dojang.core.paths import cache_root
from dojang.core.section import flatten
from dojang.planning.advice import lacking_resources, predict_problems, split_findings
from dojang.planning.estimate import Subject, estimate
from dojang.planning.gpu_split import with_split
from dojang.planning.instances import INSTANCES, Instance
from dojang.planning.layout import make_layout
from dojang.planning.shapes import Shape, find_shape
from dojang.planning.tokens_per_step import Lengths
from dojang.types import Problem

__all__ = ["Preflight", "gpus_of", "preflight"]

_LOOPBACK = ("localhost", "::1", "0.0.0.0")
_CPU_PARAMETERS = 2e9
"""Maximum number of parameters to train without a GPU: more take hours per step."""
_CHARACTERS_PER_TOKEN = 3.5
_PROMPT_TOKENS = 512
"""Assumed prompt length in tokens if the data are not on this machine."""


@dataclass(slots=True)
class Preflight:
    """Result of the checks."""

    wrong: list[str] = field(default_factory=list)
    """Reasons why the job cannot work."""
    notes: list[str] = field(default_factory=list)
    """Choices, warnings, and checks that were skipped."""


def gpus_of(groups: Sequence[InstanceGroup]) -> int | None:
    """Number of GPUs of all instances; None if an instance type is not in the plan's table."""
    found = [_known(group) for group in groups]
    if any(instance is None for instance in found):
        return None
    return sum(instance.gpus * group.count for instance, group in zip(found, groups, strict=True) if instance)


def preflight(
    config: RunConfig, groups: Sequence[InstanceGroup], source: Path | None, environment: Mapping[str, str]
) -> Preflight:
    """Checks a job; in `config` the paths of local inputs are those of this machine, `environment` is the job's."""
    found = Preflight()
    _tracking(config, environment, found)
    found.wrong += _addresses(config, gpus=not groups or gpus_of(groups) != 0)
    shapes = _models(config, found)
    with _importable(source):
        problems = _problems(config, found)
    if groups:
        _instances(config, groups, shapes, problems, found)
    return found


def _known(group: InstanceGroup) -> Instance | None:
    return INSTANCES.get(group.type.removeprefix("ml."))


def _addresses(config: RunConfig, *, gpus: bool) -> Iterator[str]:
    """Errors of service addresses that a job cannot reach, and of another cluster's address."""
    if isinstance(config.runtime, RayConfig) and config.runtime.address:
        yield f"runtime.address={config.runtime.address}: a job starts its own Ray cluster; leave it out"
    tester, engine = config.tester.url if config.tester else [], config.rollout.engine
    if engine.name == "remote" and any(map(_is_loopback, [*engine.url, *tester])):
        settings = ["rollout.engine=vllm" if gpus else "rollout.engine=torch"]
        settings += ["tester.url=[]"] if tester else []
        yield (
            f"rollout.engine.name=remote at {', '.join([*engine.url, *tester])}: a job cannot reach this address; "
            f"add {' '.join(settings)} for engines in the job, or name servers that it can reach"
        )
    if config.distillation is not None and any(map(_is_loopback, config.distillation.url)):
        yield (
            f"distillation.url={','.join(config.distillation.url)}: a job cannot reach this address; name servers that "
            "it can reach, or a model to load (distillation.teacher)"
        )
    if config.task.runs_programs and any(map(_is_loopback, config.judge.url)):
        yield (
            f"judge.url={','.join(config.judge.url)}: a job cannot reach this address; add judge.url=[] to judge on "
            "the job's own instances, or name services that it can reach"
        )


def _tracking(config: RunConfig, environment: Mapping[str, str], found: Preflight) -> None:
    try:
        mlflow = config.track.mlflow_settings(environment)
    except ConfigError as error:
        found.wrong.append(str(error))
        return
    if mlflow is not None and (_is_loopback(mlflow.uri) or mlflow.uri.startswith("sqlite")):
        found.notes.append(
            "the address of MLflow (track.mlflow.uri or MLFLOW_TRACKING_URI) is inside the job's container: its "
            "content is lost when the job ends"
        )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host in _LOOPBACK or host.startswith("127.")


def _models(config: RunConfig, found: Preflight) -> dict[str, Shape]:
    """Shapes of the models by role, as far as they are known here."""
    shapes = {}
    for role, each in config.roles().items():
        name, setting = each.model.name, "tester.model" if role == "tester" else "model.name"
        if Path(name).is_relative_to(ROOT):
            found.notes.append(f"not checked: {setting}={name}, which only the job sees; and its memory use")
            continue
        try:
            models.check(name)
            shape, _ = find_shape(name, torch_engine=each.rollout.engine.copies_trainer)
        except DojangError as error:
            short = "model" if role != "tester" else setting
            found.wrong.append(f"{setting}: {error}; or give --input {short}=FOLDER, or =s3://...")
            continue
        if shape is None:
            found.notes.append(f"not checked: the memory use of {name}, whose size is not known here")
        else:
            shapes[role] = shape
    return shapes


def _problems(config: RunConfig, found: Preflight) -> Sequence[Problem]:
    """Loads the data and the benchmarks; returns the training problems, or none if they are not on this machine."""
    benchmarks = {
        name: each
        for name, each in config.eval.benchmarks.items()
        if not _only_in_job({"eval": {"benchmarks": {name: {"data": each.data.model_dump()}}}}, found)
    }
    if _only_in_job({"data": config.data.model_dump()}, found):
        return ()
    here = config.model_copy(update={"eval": config.eval.model_copy(update={"benchmarks": benchmarks})})
    held_out = "validation" if getattr(config.data, "validation", 0) else "test"
    try:
        data = {"train": config.data.load("train"), "test": config.data.load(held_out)}
        for split, problems in data.items():
            if not problems:
                raise DataError(f"the {split} split of {config.data.name} is empty")
        _read_tests(config, data)
        for each in load_benchmarks(here, data["test"]):
            _read_tests(each.config, {"train": (), "test": each.problems})
    except DataError as error:
        found.wrong.append(f"data: {error}".replace("\n", "\n    "))
        return ()
    except NameTaken as error:
        found.wrong.append(str(error))
        return ()
    except ConfigError as error:  # may be a package that only the job has
        found.notes.append(f"not checked: the data, which cannot be loaded here: {error}")
        return ()
    return data["train"]


def _only_in_job(settings: Mapping[str, object], found: Preflight) -> bool:
    """Reports whether data have paths that only the job sees, and notes it."""
    away = [
        f"{key}={value}" for key, value in flatten(settings) if isinstance(value, Path) and value.is_relative_to(ROOT)
    ]
    if away:
        found.notes.append(f"not checked: {', '.join(away)}, which only the job sees; `dojang plan` checks a copy here")
    return bool(away)


def _read_tests(config: RunConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
    """Raises DataError if the tests of a problem cannot be read."""
    if config.task.runs_programs:
        judge = config.judge.make(cache_root())
        config.task.make(problems, judge)
        asyncio.run(judge.close())


@contextmanager
def _importable(source: Path | None) -> Iterator[None]:
    """Makes modules of --source importable, as in the job."""
    before = list(sys.path)
    sys.path[:0] = [str(source.resolve())] if source else []
    try:
        yield
    finally:
        sys.path[:] = before


def _instances(
    config: RunConfig,
    groups: Sequence[InstanceGroup],
    shapes: Mapping[str, Shape],
    problems: Sequence[Problem],
    found: Preflight,
) -> None:
    unknown = sorted({group.type for group in groups if _known(group) is None})
    if unknown:
        found.notes.append(f"not checked: GPUs and memory, since {', '.join(unknown)} is not in the plan's table")
        return
    instance, nodes = _combine(groups)
    most = max(each.gpus for group in groups if (each := _known(group)))
    if len(groups) > 1 and most and config.rollout.engine.gpus() > most:
        found.wrong.append(
            f"rollout.engine.tensor_parallel_size={config.rollout.engine.gpus()} exceeds the {most} GPUs of one "
            "instance, and an engine cannot span instances; set it lower"
        )
    unused = next((f"{key} uses none" for key in _without_gpus(config)), "")
    if unused or not instance.gpus:
        remedy = "leave it out" if unused else "use instances with GPUs, such as ml.p4de.24xlarge"
        found.wrong += [
            f"{each.model.name} has {shapes[role].parameters / 1e9:.3g}B parameters, but "
            f"{unused or f'{instance.name} has no GPU'}; {remedy}"
            for role, each in config.roles().items()
            if role in shapes and shapes[role].parameters > _CPU_PARAMETERS
        ]
    try:
        layout = make_layout(with_split(config, instance.gpus * nodes), instance, nodes)
        if len(shapes) < len(config.roles()):
            if layout.lacks:
                found.wrong.append(lacking_resources(config, layout))
            found.notes += [each.said for each in split_findings(config, layout)]
            return
        subject = Subject(config, shapes, _lengths(config, problems), str(getattr(config.task, "language", "") or ""))
        findings = list(predict_problems(subject, estimate(subject, instance, nodes)))
    except ConfigError as error:
        found.wrong.append(str(error))
        return
    found.wrong += [each.said for each in findings if each.level == "failed"]
    judges_elsewhere = len(groups) > 1
    found.notes += [
        f"{each.about}: {each.said}"
        for each in findings
        if each.level != "failed" and each.about in ("ranks", "memory", "judge")
        if not (each.about == "judge" and judges_elsewhere)
    ]


def _without_gpus(config: RunConfig) -> Iterator[str]:
    """Yields settings that leave the GPUs of all instances unused."""
    if config.model.device == "cpu":
        yield "model.device=cpu"
    if isinstance(config.runtime, RayConfig) and config.runtime.gpus == 0:
        yield "runtime.gpus=0"


def _combine(groups: Sequence[InstanceGroup]) -> tuple[Instance, int]:
    """Combines the instances for trainers and engines into one kind and its count. Of several GPU types the largest
    counts: a model that does not fit it fits none."""
    all_groups = [(instance, group) for group in groups if (instance := _known(group))]
    used = [each for each in all_groups if each[0].gpus] or all_groups
    largest, _ = max(used, key=lambda each: each[0].gpu.memory_gib if each[0].gpu else each[0].memory_gib)
    if len(used) == 1:
        return replace(largest, name=used[0][1].type), used[0][1].count
    names = " and ".join(f"{group.count} x {group.type}" for _, group in used)
    if not largest.gpus:
        return replace(largest, name=names), sum(group.count for _, group in used)
    total = replace(
        largest,
        name=names,
        gpus=sum(instance.gpus * group.count for instance, group in used),
        vcpus=sum(instance.vcpus * group.count for instance, group in used),
        memory_gib=sum(instance.memory_gib * group.count for instance, group in used),
    )
    return total, 1


def _lengths(config: RunConfig, problems: Sequence[Problem]) -> dict[str, Lengths]:
    """Prompt lengths, estimated from characters, and the maximum completion lengths, in tokens."""
    sizes = [
        round(sum(len(turn.content) for turn in problem.messages) / _CHARACTERS_PER_TOKEN) for problem in problems
    ] or [_PROMPT_TOKENS]
    lengths, before = {}, 0
    for role, each in config.roles().items():
        most = each.rollout.max_tokens
        mean, longest = sum(sizes) // len(sizes) + before, max(sizes) + before
        lengths[role] = Lengths(mean, longest, most, most, shared=not before)
        before = most
    return lengths

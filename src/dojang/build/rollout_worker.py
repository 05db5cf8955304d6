"""Builds rollout workers in other processes: the trainer's side, and the worker's own parts.

A worker builds data, task, judge and engine from the run's settings, as the trainer does, but no trainer.
"""

import asyncio
import hashlib
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console

from dojang import __version__, models
from dojang.build.local import Numerics, load_tokenizer, make_engine, numerics, prepare_torch
from dojang.build.model_description import check_same_model, describe_model
from dojang.build.prepare import Data, Prepared, prepare
from dojang.build.workflows import RoleParts, SamplingParts, make_workflow
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.engine.config import StartedEngineSection
from dojang.loop.prompt_sampler import problem_at
from dojang.loop.rollout_workers import LocalWorkers, RolloutWorkers
from dojang.protocols import Judge, RolloutEngine, ServingEngine, Workflow
from dojang.rollout_service.client import TOKEN_VARIABLE, check_token
from dojang.rollout_service.messages import JoinRequest, RunDescription
from dojang.rollout_service.served_workers import ServedWorkers, StartedWorkers
from dojang.rollout_service.server import ServedRun
from dojang.rollout_service.worker import WorkerParts, worker_name
from dojang.rollout_service.worker_process import LocalProcesses
from dojang.types import Problem
from dojang.weight_sync.versions import WeightVersions

__all__ = ["BuiltWorker", "build_worker", "data_digest", "make_workers", "rollout_slots", "worker_environment"]


def rollout_slots(config: RunConfig) -> int:
    """Groups that one worker samples at a time: as many as its engine decodes. The queue limits it to its share."""
    engine = config.rollout.engine
    assert isinstance(engine, StartedEngineSection)  # the configuration refuses others
    return max(1, engine.max_num_seqs // config.rollout.group_size)


def data_digest(problems: Sequence[Problem]) -> str:
    """Digest of training problems: ids, prompts and references, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for each in problems:
        reference = getattr(each.reference, "digest", each.reference)  # a test suite has one
        prompt = [(message.role, message.content) for message in each.messages]
        digest.update(repr((each.id, each.source, prompt, reference)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def make_workers(
    config: RunConfig,
    prepared: Prepared,
    parts: Mapping[str, RoleParts],
    numeric: Numerics,
    workflow: Workflow,
    engine: RolloutEngine,
    directory: RunDir,
    console: Console,
) -> list[RolloutWorkers]:
    """Builds the rollout workers of loop.mode=stream, in this process and in others; none in other modes."""
    loop = config.loop
    if loop.mode != "stream":
        return []
    problem = partial(problem_at, prepared.train, config.seed)
    if not loop.other_workers:
        return [LocalWorkers(workflow, engine, problem)]
    # Without samples the engine of this process still loads weights, for evaluations.
    here = LocalWorkers(workflow, engine, problem, idle=not loop.sample_here)
    return [_make_served_workers(config, prepared, parts, numeric, directory, console), here]


def _make_served_workers(
    config: RunConfig,
    prepared: Prepared,
    parts: Mapping[str, RoleParts],
    numeric: Numerics,
    directory: RunDir,
    console: Console,
) -> ServedWorkers:
    dtype = str(numeric.compute).removeprefix("torch.")  # the checksum of the weights depends on it
    sent = config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})})
    settings = recipes.to_tree(sent, absolute=True)  # as a resumed run has them: workers can join that
    check_token(given := os.environ.get(TOKEN_VARIABLE, ""))
    run = ServedRun(
        description=RunDescription(
            dojang=__version__,
            config=settings,
            models={
                role: describe_model(models.resolve(part.config.model.name), part.policy.tokenizer)
                for role, part in parts.items()
            },
        ),
        data=data_digest(prepared.train),
        problem=partial(problem_at, prepared.train, config.seed),
        weights={role: _weights(part) for role, part in parts.items()},
        token=given or secrets.token_urlsafe(24),
        timeout_s=config.loop.worker_timeout_s,
    )

    def announce(url: str) -> None:
        token = f"${TOKEN_VARIABLE}" if given else run.token
        text = f"to add a rollout worker: {TOKEN_VARIABLE}={token} dojang serve rollouts --join {url}"
        if config.loop.listen:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    started = _start_workers(config, prepared, numeric, directory)
    host, port = config.loop.address(started.host)
    return ServedWorkers(run, host, port, started, announce)


def _start_workers(config: RunConfig, prepared: Prepared, numeric: Numerics, directory: RunDir) -> StartedWorkers:
    """Builds the workers that the run itself starts: actors on Ray, else processes on this machine."""
    if config.runtime.name == "ray":
        from dojang.build.ray_workers import make_ray_workers

        return make_ray_workers(config, prepared.data)
    devices = torch.cuda.device_count() if numeric.device.type == "cuda" else 0
    shared = ["--shared-gpu"] if devices == 1 else []

    def command(url: str) -> list[str]:
        return [sys.executable, "-m", "dojang", "serve", "rollouts", "--join", url, *shared]

    environments = [worker_environment(config, number, devices) for number in range(config.loop.workers)]
    return LocalProcesses(command, environments, directory.worker_log)


def _weights(part: RoleParts) -> WeightVersions:
    weights = part.policy.served
    assert weights is not None  # the run has other workers
    return weights


def worker_environment(config: RunConfig, number: int, devices: int) -> dict[str, str]:
    """Environment of a worker process: the user's folders of modules, its share of the CPU cores, and its GPUs after
    those of the trainer. A worker is no rank of a run by torchrun."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    found = {name: value for name, value in alone.items() if name in os.environ}
    # Rewards and tasks may be beside the script that trains, which is not where it was started.
    folders = [path for path in sys.path if os.path.isdir(path) and not path.startswith((sys.prefix, sys.base_prefix))]
    if folders:
        found["PYTHONPATH"] = os.pathsep.join(folders)
    if "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        found["OMP_NUM_THREADS"] = str(max(1, cores // (config.loop.workers + ranks)))
    if devices:
        visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
        names = visible if len(visible) == devices else [str(each) for each in range(devices)]
        size = config.rollout.engine.gpus()
        chosen = [names[(ranks + number * size + each) % devices] for each in range(size)]
        found["CUDA_VISIBLE_DEVICES"] = ",".join(dict.fromkeys(chosen))
    return found


@dataclass(frozen=True, slots=True)
class BuiltWorker:
    """A worker's parts, and the judge that the caller closes with the engines."""

    parts: WorkerParts
    judge: Judge

    async def close(self) -> None:
        """Closes engines and judge."""
        for engine in self.parts.engines.values():
            await engine.close()
        await self.judge.close()


def build_worker(
    description: RunDescription, config: RunConfig, *, alone: bool = True, data: Data | None = None
) -> BuiltWorker:
    """Builds a worker of a run, with the settings that it has on this machine (worker_config.py). `alone`: no other
    process uses its GPU. `data`: problems of both splits, if they need not be loaded. Not to be called from an event
    loop."""
    if list(config.roles()) != list(description.models):
        raise ConfigError(f"the run trains {list(description.models)}, but its settings have {list(config.roles())}")
    for role, each in config.roles().items():
        source = models.resolve(each.model.name)
        own = describe_model(source, load_tokenizer(source)[0])
        key = "tester.model" if role == "tester" else "model.name"
        check_same_model(key, each.model.name, own, description.models[role])
    prepared = prepare(config, data=data)
    try:
        return _build(description, config, prepared, alone)
    except BaseException:
        asyncio.run(prepared.judge.close())
        raise


def _build(description: RunDescription, config: RunConfig, prepared: Prepared, alone: bool) -> BuiltWorker:
    numeric = numerics(config)
    prepare_torch(numeric.device)
    sampling: dict[str, SamplingParts] = {}
    engines: dict[str, ServingEngine] = {}
    for role, each in config.roles().items():
        tokenizer, renderer = prepared.renderers[role]
        source = models.resolve(each.model.name)
        store = WeightVersions(numeric.compute)  # unused: weights come as packs
        engine = make_engine(each, numeric, source, None, tokenizer, store, alone=alone)
        if not isinstance(engine, ServingEngine):
            raise ConfigError(f"the engine of {each.model.name} takes no weights from elsewhere; use loop.mode=overlap")
        engines[role] = engine
        sampling[role] = SamplingParts(each, renderer, engine)
    join = JoinRequest(
        name=worker_name(os.getpid()),
        dojang=__version__,
        run=description.digest,
        data=data_digest(prepared.train),
    )
    parts = WorkerParts(
        join=join,
        engines=engines,
        workflow=make_workflow(config, prepared.task, sampling),
        problem=partial(problem_at, prepared.train, config.seed),
        slots=rollout_slots(config),
        device=numeric.device,
    )
    return BuiltWorker(parts, prepared.judge)

"""Describes a run without training: `dojang train --dry-run`."""

import asyncio
import os

from dojang import models
from dojang.build import assemble
from dojang.build.distiller import tokenizers_differ
from dojang.build.preflight import check_hub, check_servers, engine_support
from dojang.build.prompt_lengths import describe_dropped, describe_multiple_answers
from dojang.cluster.runtime_config import engine_gpus
from dojang.config.run_config import RunConfig
from dojang.core.error_list import ErrorList

__all__ = ["describe"]


def describe(config: RunConfig) -> str:
    """Describes a run in a few lines, after all checks of a run; raises all errors that they find together."""
    errors = ErrorList()
    where, prepared = "", None
    with errors.collect():
        where = _where(config)
    notes: list[str] = []
    for role in config.roles().values():
        with errors.collect():
            notes.append(check_hub(role.model.name))
        with errors.collect():
            check_servers(role)
    with errors.collect():
        prepared = assemble.prepare(config, dry=True)
        asyncio.run(prepared.judge.close())
    errors.raise_if_any()
    assert prepared is not None
    config = prepared.config
    rollout = config.rollout
    passes = config.steps * rollout.prompts_per_step / len(prepared.train)
    updates = config.steps * config.train.steps_per_batch
    return "\n".join(
        [
            "would run:",
            f"  model   {models.check(config.model.name)}; {where}",
            *(f"          {note}" for note in filter(None, notes)),
            *_slow_engine(config),
            *_second_model(config),
            *_cluster(config),
            f"  data    {config.data.name}: {len(prepared.train):,} training and "
            f"{len(prepared.task.problems('test')) - prepared.dropped.get('test', 0):,} held-out problems",
            *_multiple_answers(config, prepared),
            *_overlong(config, prepared),
            f"  steps   {config.steps} of {_batch(config)}{passes:.2f} passes over the data)",
            f"  learn   {config.algo.name}, {updates} optimizer steps, "
            f"learning rate {config.train.lr:g} ({config.train.schedule})",
            *_checkpointed(config),
            *_loop(config),
            *_teacher(config),
            f"  eval    {len(prepared.held_out)} held-out problems before, every {config.eval.every} steps, and after",
            *(
                f"          {each.name}: {len(each.problems)} problems before, every {each.every} steps, and after; "
                f"task.name={each.config.task.name}"
                for each, _ in prepared.benchmarks
            ),
            f"  save    every {config.checkpoint.every} steps; kept: the last, the best {config.checkpoint.keep} by "
            f"{config.checkpoint.metric} ({config.checkpoint.mode})",
        ]
    )


def _batch(config: RunConfig) -> str:
    """Batch of a step, and the total of all steps."""
    rollout, problems = config.rollout, config.steps * config.rollout.prompts_per_step
    if config.algo.name == "sft":
        return f"{rollout.prompts_per_step} completions ({problems:,} completions, "
    return (
        f"{rollout.prompts_per_step} problems x {rollout.group_size} samples ({problems * rollout.group_size:,} "
        f"samples of up to "
        f"{rollout.max_tokens} tokens, "
    )


def _checkpointed(config: RunConfig) -> list[str]:
    """Layers with gradient checkpointing."""
    if not (setting := config.train.gradient_checkpointing):
        return []
    layers = "all" if setting is True else f"the first {setting}"
    return [f"          layers with gradient checkpointing: {layers}"]


def _loop(config: RunConfig) -> list[str]:
    """Order of rollouts and updates, and the processes that sample, if they do not take turns."""
    loop = config.loop
    if loop.mode == "sync":
        return []
    on_ray = config.runtime.name == "ray"
    workers = f"{loop.workers} rollout worker{'s' * (loop.workers > 1)}{' on the cluster' * on_ray}"
    samplers = [
        *(["the engines" if on_ray else "this process"] if loop.sample_here else []),
        *([workers] if loop.workers else []),
        *([f"those that join at {loop.listen}"] if loop.listen else []),
    ]
    by = f"; sampled by {', '.join(samplers)}" if loop.other_workers else ""
    return [f"  loop    {loop.mode}, loop.lag={loop.staleness}{by}"]


def _overlong(config: RunConfig, prepared: assemble.Prepared) -> list[str]:
    """Number of overlong prompts left out, if they are filtered."""
    if not config.data.filter_overlong_prompts:
        return []
    if not prepared.dropped:
        return ["          overlong prompts are counted by the run: the model's tokenizer is not on this machine"]
    return [f"          overlong prompts left out: {describe_dropped(list(prepared.dropped.items()))}"]


def _multiple_answers(config: RunConfig, prepared: assemble.Prepared) -> list[str]:
    if not config.data.filter_multiple_answers:
        return []
    return [f"          {describe_multiple_answers(prepared.multiple_answers)}"]


def _where(config: RunConfig) -> str:
    """Device and dtype, or the numbers of processes on a Ray cluster."""
    runtime = config.runtime
    if runtime.name == "ray":
        engines = "" if config.rollout.engine.external else f", runtime.engines={runtime.engines}"
        return f"on a Ray cluster, runtime.trainers={runtime.trainers}{engines}"
    numeric = assemble.numerics(config)
    return f"{str(numeric.compute).removeprefix('torch.')} on {numeric.device}"


def _slow_engine(config: RunConfig) -> list[str]:
    """Warning for a model that the torch engine does not compute."""
    if not config.rollout.engine.copies_trainer:
        return []
    found = [engine_support(each.model.name) for each in config.roles().values()]
    return [f"          {each.message}" for each in found if each is not None and each.engine == "generate"]


def _cluster(config: RunConfig) -> list[str]:
    """CPUs and GPUs that trainers and engines need on a Ray cluster, and those of rollout workers; a dry run does not
    connect to it."""
    if config.runtime.name != "ray":
        return []
    cpus = gpus = 0.0
    for role in config.roles().values():
        runtime = role.runtime
        assert runtime.name == "ray"
        engines = 0 if role.rollout.engine.external else runtime.engines
        each = 1.0 if runtime.gpus is None else runtime.gpus
        cpus += (runtime.trainers + engines) * runtime.cpus
        gpus += runtime.trainers * each + engines * engine_gpus(each, role.rollout.engine.gpus())
    address = config.runtime.address or os.environ.get("RAY_ADDRESS")
    where = f"at {address}" if address else f"of this machine, which has {len(os.sched_getaffinity(0))} CPUs"
    needs = f"needs {cpus:g} CPUs" + (f", and {gpus:g} GPUs if it has any" if gpus else "")
    return [f"  cluster {needs}; a dry run does not connect to the cluster {where}", *_worker_resources(config)]


def _worker_resources(config: RunConfig) -> list[str]:
    """CPUs and GPUs of rollout workers on a Ray cluster."""
    runtime, count = config.runtime, config.loop.workers
    if not count or runtime.name != "ray":
        return []
    gpus = engine_gpus(1.0 if runtime.gpus is None else runtime.gpus, config.rollout.engine.gpus())
    each = f"{runtime.cpus:g} CPUs" + (f", and {gpus:g} GPUs if it has any" if gpus else "")
    return [f"          rollout workers need {each}, each of {count}; those without room start when a node has it"]


def _teacher(config: RunConfig) -> list[str]:
    """Teacher of a distillation run."""
    if (chosen := config.distillation) is None:
        return []
    who = f"on {', '.join(chosen.url)}" if chosen.url else chosen.teacher
    if chosen.local_model:
        who = models.check(chosen.local_model)
    reward = f", reward advantage x {chosen.reward_coef:g}" if chosen.reward_coef else ", no reward"
    found = [f"  teacher {who}; reverse KL x {chosen.coef:g}{reward}{', hinted' if chosen.hint else ''}"]
    if tokenizers_differ(config):
        found.append("          its tokenizer differs from the student's: log-probs are aligned by text")
    return found


def _second_model(config: RunConfig) -> list[str]:
    """Second model of a run with two."""
    return [
        f"  {role:<7} {models.check(each.model.name)}; learning rate {each.train.lr:g}, replies of up to "
        f"{each.rollout.max_tokens} tokens"
        for role, each in config.roles().items()
        if each is not config
    ]

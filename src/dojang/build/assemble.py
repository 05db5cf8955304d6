"""The composition root: builds a Run from a RunConfig. The only module that imports every package."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from dojang import models
from dojang.build.distiller import make_distiller
from dojang.build.local import (
    LocalPolicy,
    Numerics,
    has_critic,
    load_tokenizer,
    numerics,
    prepare_torch,
)
from dojang.build.prepare import Prepared, checked_task, make_algorithms, measure_prompts, prepare
from dojang.build.rollout_worker import make_workers
from dojang.build.sampling import train_sampling
from dojang.build.sft import demonstrations, held_out_samples
from dojang.build.workflows import RoleParts, make_eval_workflow, make_workflow
from dojang.config.run_config import RunConfig
from dojang.core.run_dir import RunDir
from dojang.engine.config import EngineSection
from dojang.inference.multi_policy import MultiPolicyEngine
from dojang.loop.checkpoint_ranking import CheckpointRanking
from dojang.loop.curriculum import Curriculum
from dojang.loop.evaluate import Benchmark
from dojang.loop.health_check import HealthCheck
from dojang.loop.parity_check import ParityCheck
from dojang.loop.run import Run
from dojang.protocols import Algorithm, RolloutEngine, Trainer
from dojang.track.console import ConsoleTracker
from dojang.track.file_tracker import FileTracker
from dojang.track.multi_tracker import MultiTracker
from dojang.trainer import distributed
from dojang.trainer.distributed import DistributedTrainer
from dojang.trainer.multi_policy_trainer import MultiPolicyTrainer
from dojang.trainer.process_group import SINGLE_PROCESS, ProcessGroup, join_process_group
from dojang.trainer.thread_trainer import ThreadTrainer

if TYPE_CHECKING:
    from dojang.build.ray import RayPolicy

__all__ = [
    "Numerics",
    "Prepared",
    "build",
    "checked_task",
    "measure_prompts",
    "numerics",
    "prepare",
    "run_worker_rank",
]

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Largest mean difference between the engine's and the trainer's log-probs, by dtype."""
FP8_TOLERANCE = 0.5
"""The same for an engine whose linear layers are quantized to 8 bits: a small model gives 0.16."""


def build(config: RunConfig, prepared: Prepared, directory: RunDir, console: Console, *, first: int = 0) -> Run:
    """Builds a run that starts at step `first`."""
    config, numeric, ranks, make = _make_runtime(config)
    parts = _make_parts(config, prepared, make)
    leading, *_ = parts.values()
    engine, trainer = _combine(parts, ranks, prepared.algorithm)
    if config.loop.mode != "sync" and config.runtime.name == "local":
        trainer = ThreadTrainer(trainer, numeric.device)
    workflow = demonstrations(config, leading.renderer) or make_workflow(config, prepared.task, parts)
    return Run(
        seed=config.seed,
        steps=config.steps,
        prompts_per_step=config.rollout.prompts_per_step,
        minibatches=config.train.minibatches,
        ppo_epochs=config.train.ppo_epochs,
        credit=config.workflow.advantage_level,
        mask_truncated=config.train.mask_truncated_completions,
        eval_every=config.eval.every,
        save_every=config.checkpoint.every,
        problems=prepared.train,
        held_out=prepared.held_out,
        workflow=workflow,
        eval_workflow=make_eval_workflow(config, prepared.task, leading),
        benchmarks=[
            Benchmark(each.name, each.every, each.problems, make_eval_workflow(each.config, task, leading))
            for each, task in prepared.benchmarks
        ],
        engine=engine,
        algorithm=prepared.algorithm,
        trainer=trainer,
        tracker=MultiTracker(
            [
                FileTracker(
                    directory,
                    leading.policy.tokenizer,
                    {role: part.policy.tokenizer for role, part in parts.items()},
                    config.track.test_results,
                ),
                ConsoleTracker(
                    console,
                    first=first,
                    steps=config.steps,
                    eval_every=config.eval.every,
                    benchmarks={name: each.every for name, each in config.eval.benchmarks.items()},
                    completions=config.eval.num_completions_to_print,
                ),
            ]
        ),
        health=HealthCheck(config.health, needs_signal=config.distillation is None),
        answer_end=config.task.answer_end,
        directory=directory,
        weights_synced=config.rollout.engine.copies_trainer
        and config.train.lora is None
        and config.runtime.name == "local"
        and not config.loop.other_workers,  # they need the first weights as well
        lag=config.loop.staleness,
        workers=make_workers(config, prepared, parts, numeric, workflow, engine, directory, console),
        worker_timeout_s=config.loop.worker_timeout_s,
        stall_s=config.loop.stall_s,
        curriculum=Curriculum(config.seed, config.rollout.curriculum_keep),
        critic=has_critic(prepared.algorithm),
        eval_samples=held_out_samples(config, prepared.held_out, leading.renderer),
        distiller=make_distiller(config, leading, trainer),
        ranking=CheckpointRanking(config.checkpoint.metric, config.checkpoint.mode, config.checkpoint.keep),
        parity_checks=[
            ParityCheck(
                engine=part.engine,
                trainer=trainer,
                renderer=part.renderer,
                problems=prepared.train,
                sampling=train_sampling(part.config, config.seed, stops=False),
                tolerance=_tolerance(part.config.rollout.engine, numeric.compute),
                role=role,
            )
            for role, part in parts.items()
        ],
    )


def _tolerance(engine: EngineSection, dtype: torch.dtype) -> float:
    return FP8_TOLERANCE if engine.fp8 else TOLERANCE[dtype]


MakePolicy = Callable[[RunConfig, str, PreTrainedTokenizerBase], "LocalPolicy | RayPolicy"]
"""Makes a policy from its configuration, model directory and tokenizer."""


def _make_runtime(config: RunConfig) -> tuple[RunConfig, Numerics, ProcessGroup, MakePolicy]:
    """Resolves device and dtype, joins the process group, and returns how policies are made: locally or on Ray."""
    if config.runtime.name == "ray":
        from dojang.build.ray import RayPolicy, resolve_numerics

        config, numeric = resolve_numerics(config)
        return config, numeric, SINGLE_PROCESS, lambda each, source, tokenizer: RayPolicy(each, numeric, tokenizer)
    numeric = numerics(config)
    prepare_torch(numeric.device)
    ranks = join_process_group(numeric.device, config.train.sequence_parallel)
    ranks.broadcast_first((config.steps, config.train.gradient_checkpointing))  # only the first rank knows them
    reservations: list[Callable[[], int]] = []

    def make(each: RunConfig, source: str, tokenizer: PreTrainedTokenizerBase) -> LocalPolicy:
        return LocalPolicy(each, numeric, ranks, source, tokenizer, reservations=reservations)

    return config, numeric, ranks, make


def _make_parts(config: RunConfig, prepared: Prepared, make: MakePolicy) -> dict[str, RoleParts]:
    roles = config.roles()
    sources = {role: models.resolve(each.model.name) for role, each in roles.items()}
    parts: dict[str, RoleParts] = {}
    for role, each in roles.items():
        tokenizer, renderer = prepared.renderers[role]
        policy = make(each, sources[role], tokenizer)
        engine = policy.make_engine()
        parts[role] = RoleParts(each, renderer, engine, policy, policy.make_trainer(prepared.algorithms[role]))
    return parts


def _combine(
    parts: Mapping[str, RoleParts], ranks: ProcessGroup, algorithm: Algorithm
) -> tuple[RolloutEngine, Trainer]:
    """Combines the roles' engines and trainers into one of each for the loop."""
    first, *others = parts.values()
    engine, trainer = first.engine, first.trainer
    if others:
        (second,) = others
        apart = first.config.runtime.name == "ray"  # each role has its own devices
        engine = MultiPolicyEngine(engine, second.engine, concurrent=apart)
        trainer = MultiPolicyTrainer({role: each.trainer for role, each in parts.items()}, algorithm, concurrent=apart)
    return engine, DistributedTrainer(trainer, ranks) if ranks.world > 1 else trainer


def run_worker_rank(config: RunConfig) -> None:
    """Runs a rank other than the first until the first one is done."""
    numeric = numerics(config)
    prepare_torch(numeric.device)
    ranks = join_process_group(numeric.device, config.train.sequence_parallel)
    steps, checkpointed = ranks.broadcast_first((config.steps, config.train.gradient_checkpointing))
    config = config.with_train(gradient_checkpointing=checkpointed)
    config = config.model_copy(update={"steps": steps, "epochs": None})
    trainers: dict[str, Trainer] = {}
    for (role, each), algorithm in zip(config.roles().items(), make_algorithms(config).values(), strict=True):
        source = models.resolve(each.model.name)
        tokenizer, _ = load_tokenizer(source)
        policy = LocalPolicy(each, numeric, ranks, source, tokenizer, reservations=[])
        trainers[role] = policy.make_trainer(algorithm)
    first, *others = trainers.values()
    distributed.run_worker_rank(MultiPolicyTrainer(trainers, algorithm) if others else first, ranks)

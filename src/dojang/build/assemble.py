"""The composition root: RunConfig -> wired objects. The only file that knows every room."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from pydantic import ValidationError
from rich.console import Console
from transformers import PreTrainedTokenizerBase

from dojang import models
from dojang.algos.role_advantages import ByRole
from dojang.build.benchmarks import Loaded, load_benchmarks, naming
from dojang.build.distiller import check_hints, check_teacher, make_distiller
from dojang.build.local import (
    Learner,
    Numerics,
    check_model,
    check_processes,
    check_reference,
    has_critic,
    load_tokenizer,
    numerics,
    prepare_torch,
)
from dojang.build.prompt_lengths import fit_benchmarks, measure
from dojang.build.sampling import check_truncation, train_sampling
from dojang.build.sft import demonstrations, fit_rows, held_out_samples
from dojang.build.workflows import Player, make_eval_workflow, make_workflow
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError
from dojang.core.paths import cache_root
from dojang.core.run_dir import RunDir
from dojang.core.section import complaints
from dojang.data.gsm8k import Gsm8kConfig
from dojang.inference.multi_policy import Pair
from dojang.loop.checkpoint_ranking import Best, check_source
from dojang.loop.evaluate import Benchmark
from dojang.loop.health_check import HealthGate
from dojang.loop.parity_check import Agreement
from dojang.loop.sync import Run
from dojang.protocols import Algorithm, Judge, RolloutEngine, SpreadJudge, Task, Trainer
from dojang.tasks.code import CodeConfig, CodeTask
from dojang.tasks.splits import check_parts, check_rewards
from dojang.track.console import ConsoleTracker
from dojang.track.file_tracker import FileTracker
from dojang.track.multi_tracker import Fanout
from dojang.trainer import distributed
from dojang.trainer.distributed import Team
from dojang.trainer.multi_policy_trainer import Roles
from dojang.trainer.process_group import ALONE, Ranks, join
from dojang.types import Message, Problem
from dojang.workflows.chat_renderer import ChatRenderer

if TYPE_CHECKING:
    from dojang.build.ray import SpreadLearner

__all__ = [
    "Numerics",
    "Prepared",
    "build",
    "checked_task",
    "follow",
    "measure_prompts",
    "numerics",
    "prepare",
]

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.2}
"""How far log-probs of the engine and the trainer may be apart on average, by the precision they compute in."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What can go wrong cheaply, made first: data, task, algorithm and prompts."""

    config: RunConfig
    """As it was given, with `epochs` resolved to `steps`."""
    task: Task
    algorithms: Mapping[str, Algorithm]
    """Of each model, by its role."""
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    judge: Judge
    """Whoever is done with this closes it."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of overlong prompts that were left out, by split; empty where they are not filtered."""
    renderers: Mapping[str, tuple[PreTrainedTokenizerBase, ChatRenderer]] = field(default_factory=dict)
    """Of each model, by its role; without those that a dry run would have to download."""
    benchmarks: Sequence[tuple[Loaded, Task]] = ()
    """Further evaluation sets, each with the task that grades it."""
    multiple_answers: int = 0
    """Number of training problems left out by data.filter_multiple_answers."""

    @property
    def prompts(self) -> list[Sequence[Message]]:
        """All that the policy is asked, in training and evaluations."""
        more = [problem for benchmark, _ in self.benchmarks for problem in benchmark.problems]
        return [problem.messages for problem in (*self.train, *self.held_out, *more)]

    @property
    def algorithm(self) -> Algorithm:
        """What the loop asks."""
        first, *others = self.algorithms.values()
        return ByRole(self.algorithms) if others else first


def prepare(config: RunConfig, *, dry: bool = False, measured: bool = True) -> Prepared:
    """Load the data, make the task and the algorithm and, unless told not to, measure the prompts; an empty split is an
    error here, not a puzzle later. `dry`: not by the processes that are to run it."""
    config.track.check()
    for each in config.roles().values():
        models.check(each.model.name)
        check_model(each)
    check_teacher(config)
    if not dry and config.runtime.name == "local":  # on Ray the ranks are actors; RunConfig has checked their number
        check_processes(config)
    algorithms = _make_algorithms(config)
    if config.runtime.name == "ray" and not dry:
        from dojang.cluster.ray.placement import connect

        connect(config.runtime)
    data = _load_data(config)
    benchmarks = load_benchmarks(config, data["test"])
    judge = _make_judge(config, data, dry=dry)
    task, graded = _make_tasks(config, data, benchmarks, judge)
    try:
        splits = {split: task.problems(split) for split in ("train", "test")}
        if empty := [split for split, problems in splits.items() if not problems]:
            raise DataError(f"the {empty[0]} split of {config.data.name} is empty")
        resolved = _with_steps(config, len(splits["train"]))
        train, test = splits["train"], splits["test"][: config.eval.problems]
        check_source(config.checkpoint.metric, {each.source for each in test} | config.eval.benchmarks.keys())
        check_hints(config, train[0])
        prepared = Prepared(resolved, task, algorithms, train, test, judge, benchmarks=graded)
        return measure_prompts(config, prepared, dry=dry) if measured else prepared
    except BaseException:
        asyncio.run(judge.close())
        raise


def measure_prompts(config: RunConfig, prepared: Prepared, *, dry: bool = False) -> Prepared:
    """The same with overlong prompts refused, or left out where data.filter_overlong_prompts is set."""
    found = measure(config, prepared.task, prepared.train, dry=dry)
    _, renderer = found.renderers.get(next(iter(config.roles())), (None, None))
    fitting, dropped = fit_benchmarks([each for each, _ in prepared.benchmarks], renderer)
    train = fit_rows(config, found.train, renderer)
    if short := len(found.train) - len(train):
        dropped["train"] = found.dropped.get("train", 0) + short
    fields = {**found.as_fields(), "train": train, "dropped": {**found.dropped, **dropped}}
    graded = [(each, task) for each, (_, task) in zip(fitting, prepared.benchmarks, strict=True)]
    return replace(prepared, config=_with_steps(config, len(train)), benchmarks=graded, **fields)


def _with_steps(config: RunConfig, problems: int) -> RunConfig:
    try:
        return config.with_steps(problems)
    except ValidationError as error:
        raise ConfigError(
            f"epochs={config.epochs:g} of {problems:,} problems: {'; '.join(complaints(error))}"
        ) from None


def _make_algorithms(config: RunConfig) -> dict[str, Algorithm]:
    found: dict[str, Algorithm] = {
        role: each.algo.make(each.rollout.max_tokens) for role, each in config.roles().items()
    }
    for algorithm in found.values():
        check_truncation(config, algorithm)
        check_reference(config, algorithm)
    if len(found) > 1 and any(map(has_critic, found.values())):
        raise ConfigError(f"workflow.name={config.workflow.name} has no critics, and algo.make_with needs one")
    return found


def _check_cases(task: CodeTask, problems: Sequence[Problem]) -> None:
    """A tester must be able to write tests like the problem's own."""
    if unlike := [problem.id for problem in problems if task.function(problem) is None]:
        raise DataError(
            f"{len(unlike)} problems, such as {unlike[0]}, have tests that are neither text in and text out nor calls "
            "of one function by its name; workflow.name=coder_tester cannot ask for more of these"
        )


def _load_data(config: RunConfig) -> dict[str, Sequence[Problem]]:
    # A test split that a run has looked at all along would say too much of it: where there is another, that is taken.
    held_out = "validation" if isinstance(config.data, Gsm8kConfig) and config.data.validation else "test"
    return {"train": config.data.load("train"), "test": config.data.load(held_out)}


def _make_judge(config: RunConfig, problems: Mapping[str, Sequence[Problem]], *, dry: bool) -> Judge:
    """Services that were named, else all machines of the cluster, else this one."""
    services = isinstance(config.task, CodeConfig) and config.judge.url
    if config.runtime.name == "local" or dry or services:
        return config.judge.make(cache_root())
    from dojang.build.ray_judges import make_judge

    return make_judge(config, problems)


def _make_tasks(
    config: RunConfig, problems: Mapping[str, Sequence[Problem]], benchmarks: Sequence[Loaded], judge: Judge
) -> tuple[Task, list[tuple[Loaded, Task]]]:
    """Of the run, and of each benchmark."""

    async def make() -> tuple[Task, list[tuple[Loaded, Task]]]:
        try:
            task = await checked_task(config, problems, judge)
            return task, [(each, await _benchmark_task(each, judge)) for each in benchmarks]
        except BaseException:
            await judge.close()
            raise

    return asyncio.run(make())


async def _benchmark_task(benchmark: Loaded, judge: Judge) -> Task:
    """Judges of a cluster know the run's own task; programs they run for any, and the rest is graded here."""
    config, problems = benchmark.config, {"train": (), "test": benchmark.problems}
    with naming(benchmark.name):
        if isinstance(config.task, CodeConfig):
            return await checked_task(config, problems, judge)
        await check_rewards(task := config.task.make(problems), problems)
        return task


async def checked_task(config: RunConfig, problems: Mapping[str, Sequence[Problem]], judge: Judge) -> Task:
    """With a judge that knows the languages of its problems, if it needs one."""
    if not isinstance(config.task, CodeConfig):
        task_here = config.task.make(problems)
        await check_rewards(task_here, problems)
        if config.task.name == "custom" and config.algo.name != "custom":
            await check_parts(task_here, problems, config.algo.reward_weights)
        if not isinstance(judge, SpreadJudge):
            return task_here
        from dojang.build.ray_judges import spread_task

        return await spread_task(task_here, config, judge)
    task = config.task.make(problems, judge)
    await check_rewards(task, problems)
    for language in sorted(task.languages):
        await config.judge.check(judge, language)
    if config.workflow.name == "coder_tester":
        _check_cases(task, problems["train"])
    return task


def build(config: RunConfig, prepared: Prepared, directory: RunDir, console: Console, *, first: int = 0) -> Run:
    """Everything a run needs, from step `first` on."""
    config, numeric, ranks, make = _find_place(config)
    players = _make_players(config, prepared, make)
    leading, *_ = players.values()
    engine, trainer = _joined(players, ranks, prepared.algorithm)
    return Run(
        seed=config.seed,
        steps=config.steps,
        prompts=config.rollout.prompts_per_step,
        updates=config.train.minibatches,
        epochs=config.train.ppo_epochs,
        mask_truncated=config.train.mask_truncated_completions,
        eval_every=config.eval.every,
        save_every=config.checkpoint.every,
        problems=prepared.train,
        held_out=prepared.held_out,
        workflow=demonstrations(config, leading.renderer) or make_workflow(config, prepared.task, players),
        exam=make_eval_workflow(config, prepared.task, leading),
        benchmarks=[
            Benchmark(each.name, each.every, each.problems, make_eval_workflow(each.config, task, leading))
            for each, task in prepared.benchmarks
        ],
        engine=engine,
        algorithm=prepared.algorithm,
        trainer=trainer,
        tracker=Fanout(
            [
                FileTracker(
                    directory,
                    leading.learner.tokenizer,
                    {role: player.learner.tokenizer for role, player in players.items()},
                ),
                ConsoleTracker(
                    console,
                    first=first,
                    steps=config.steps,
                    eval_every=config.eval.every,
                    benchmarks={name: each.every for name, each in config.eval.benchmarks.items()},
                ),
            ]
        ),
        gate=HealthGate(config.health, needs_signal=config.distillation is None),
        directory=directory,
        primed=config.rollout.engine == "torch" and config.train.lora is None and config.runtime.name == "local",
        stale=config.loop.stale_updates // config.train.steps_per_batch,
        critic=has_critic(prepared.algorithm),
        eval_samples=held_out_samples(config, prepared.held_out, leading.renderer),
        distiller=make_distiller(config, leading, trainer),
        best=Best(config.checkpoint.metric, config.checkpoint.mode, config.checkpoint.keep),
        agreements=[
            Agreement(
                engine=player.engine,
                trainer=trainer,
                renderer=player.renderer,
                problems=prepared.train,
                sampling=train_sampling(player.config, config.seed),
                tolerance=TOLERANCE[numeric.compute],
                role=role,
            )
            for role, player in players.items()
        ],
    )


MakeLearner = Callable[[RunConfig, str, PreTrainedTokenizerBase], "Learner | SpreadLearner"]
"""Of a model's configuration, its files and its tokenizer."""


def _find_place(config: RunConfig) -> tuple[RunConfig, Numerics, Ranks, MakeLearner]:
    """Where the run's models are, and how they are made there."""
    if config.runtime.name == "ray":
        from dojang.build.ray import SpreadLearner, settled

        config, numeric = settled(config)
        return config, numeric, ALONE, lambda each, source, tokenizer: SpreadLearner(each, numeric, tokenizer)
    numeric = numerics(config)
    prepare_torch(numeric.device)
    ranks = join(numeric.device, config.train.sequence_parallel)
    ranks.of_first(config.steps)  # the others do not load the data
    return config, numeric, ranks, lambda each, source, tokenizer: Learner(each, numeric, ranks, source, tokenizer)


def _make_players(config: RunConfig, prepared: Prepared, make: MakeLearner) -> dict[str, Player]:
    roles = config.roles()
    sources = {role: models.resolve(each.model.name) for role, each in roles.items()}
    players: dict[str, Player] = {}
    for role, each in roles.items():
        tokenizer, renderer = prepared.renderers[role]
        learner = make(each, sources[role], tokenizer)
        engine = learner.make_engine()
        players[role] = Player(each, renderer, learner, engine, learner.make_trainer(prepared.algorithms[role]))
    return players


def _joined(players: Mapping[str, Player], ranks: Ranks, algorithm: Algorithm) -> tuple[RolloutEngine, Trainer]:
    """What the loop knows of: one engine, one trainer."""
    first, *others = players.values()
    engine, trainer = first.engine, first.trainer
    if others:
        (second,) = others
        apart = first.config.runtime.name == "ray"  # each role's processes have devices of their own
        engine = Pair(engine, second.engine, second.learner.weights.newest, concurrent=apart)
        trainer = Roles({role: each.trainer for role, each in players.items()}, algorithm, concurrent=apart)
    return engine, Team(trainer, ranks) if ranks.world > 1 else trainer


def follow(config: RunConfig) -> None:
    """Be one of the ranks behind the first, until it is done."""
    numeric = numerics(config)
    prepare_torch(numeric.device)
    ranks = join(numeric.device, config.train.sequence_parallel)
    config = config.model_copy(update={"steps": ranks.of_first(config.steps), "epochs": None})
    trainers: dict[str, Trainer] = {}
    for (role, each), algorithm in zip(config.roles().items(), _make_algorithms(config).values(), strict=True):
        source = models.resolve(each.model.name)
        tokenizer, _ = load_tokenizer(source)
        trainers[role] = Learner(each, numeric, ranks, source, tokenizer).make_trainer(algorithm)
    first, *others = trainers.values()
    distributed.follow(Roles(trainers, algorithm) if others else first, ranks)

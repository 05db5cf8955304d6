"""Prepares a run: checks its settings, loads the data, builds the task and the algorithms, measures the prompts.

Everything that can be checked before a model is loaded is checked here, for a run, a dry run and a plan alike; all
errors are reported at once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from dojang import models
from dojang.algos.role_advantages import MultiRoleAlgorithm
from dojang.build.benchmarks import Loaded, load_benchmarks, naming
from dojang.build.distiller import check_teacher, check_teacher_prompt
from dojang.build.fp8_check import check_fp8
from dojang.build.local import check_model, check_processes, check_reference, has_critic
from dojang.build.preflight import check_architecture, check_cache, check_metric, check_packages
from dojang.build.prompt_lengths import fit_benchmarks, measure
from dojang.build.sampling import check_truncation
from dojang.build.sft import fit_rows
from dojang.config.run_config import RunConfig
from dojang.core.error_list import ErrorList
from dojang.core.errors import ConfigError, DataError
from dojang.core.in_process import function_name, in_process
from dojang.core.paths import cache_root
from dojang.core.section import complaints
from dojang.loop.checkpoint_ranking import check_source
from dojang.protocols import Algorithm, Judge, MultiNodeJudge, Task
from dojang.tasks.splits import check_gradable, check_parts, check_rewards
from dojang.types import Message, Problem
from dojang.workflows.chat_renderer import ChatRenderer

__all__ = ["Data", "Prepared", "checked_task", "make_algorithms", "measure_prompts", "prepare"]

SPLITS = ("train", "test")
Data = Mapping[str, Sequence[Problem]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Data, task, algorithms and prompts of a run: all that can be checked before a model is loaded."""

    config: RunConfig
    """The configuration, with `epochs` resolved to `steps`."""
    task: Task
    algorithms: Mapping[str, Algorithm]
    """Algorithm of each role."""
    train: Sequence[Problem]
    held_out: Sequence[Problem]
    judge: Judge
    """The caller closes it."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Number of overlong prompts left out, by split; empty if they are not filtered."""
    renderers: Mapping[str, tuple[PreTrainedTokenizerBase, ChatRenderer]] = field(default_factory=dict)
    """Tokenizer and prompt renderer of each role; without those that a dry run would have to download."""
    benchmarks: Sequence[tuple[Loaded, Task]] = ()
    """Further evaluation sets, each with the task that grades it."""
    multiple_answers: int = 0
    """Number of training problems left out by data.filter_multiple_answers."""
    data: Data = field(default_factory=dict)
    """Problems of both splits, as they were loaded."""

    @property
    def prompts(self) -> list[Sequence[Message]]:
        """All prompts of training and evaluation."""
        more = [problem for benchmark, _ in self.benchmarks for problem in benchmark.problems]
        return [problem.messages for problem in (*self.train, *self.held_out, *more)]

    @property
    def algorithm(self) -> Algorithm:
        """Algorithm of the loop; dispatches by role if the run has several policies."""
        first, *others = self.algorithms.values()
        return MultiRoleAlgorithm(self.algorithms) if others else first


def prepare(
    config: RunConfig,
    *,
    dry: bool = False,
    measured: bool = True,
    packages: bool = True,
    data: Data | None = None,
) -> Prepared:
    """Checks the settings, loads the data, builds the task and the algorithms, and measures the prompts (unless
    `measured` is false). Raises all errors that it finds together.

    `dry`: a dry run, which connects to no cluster and checks no process count. `packages`: whether the packages that
    settings need must be installed here. `data`: problems of both splits, if another process has loaded them; it has
    tried to start an episode, too.
    """
    errors = ErrorList()
    algorithms = _check_settings(config, errors, dry=dry, packages=packages)
    if config.runtime.name == "ray" and not dry:
        errors.raise_if_any()  # a cluster is not started for a run that cannot begin
        from dojang.cluster.ray.placement import connect

        connect(config.runtime)
    given = data is not None
    data = _load_data(config, errors) if data is None else data
    benchmarks: list[Loaded] = []
    with errors.collect():
        benchmarks = load_benchmarks(config, data.get("test", ()))
    judge = _make_judge(config, data, dry=dry)
    try:
        task, graded = _make_tasks(config, data, benchmarks, judge, errors)
        if task is None or len(data) < len(SPLITS) or not algorithms:
            errors.raise_if_any()
        assert task is not None
        resolved = config
        with errors.collect():
            resolved = _check_splits(config, task)
        train, test = task.problems("train"), task.problems("test")[: config.eval.problems]
        if not (train and test):
            errors.raise_if_any()
        prepared = Prepared(resolved, task, algorithms, train, test, judge, benchmarks=graded, data=data)
        if measured:
            with errors.collect():
                prepared = measure_prompts(config, prepared, dry=dry)
                if not given:
                    _check_start(prepared)
        errors.raise_if_any()
        return prepared
    except BaseException:
        asyncio.run(judge.close())
        raise


def _check_travels(config: RunConfig) -> None:
    """Raises ConfigError if rollout workers in other processes could not import a reward."""
    local = [name for name in getattr(config.task, "rewards", {}) if in_process(name)]
    if local and config.loop.other_workers:
        raise ConfigError(
            f"rollout workers are other processes, which cannot import {function_name(local[0])!r}; put it into a "
            "module and give it as 'package.module:function', or leave loop.workers and loop.listen out"
        )


def _check_settings(config: RunConfig, errors: ErrorList, *, dry: bool, packages: bool) -> dict[str, Algorithm]:
    """Checks settings against this machine and the models; returns the algorithm of each role, unless one is wrong."""
    if packages:
        with errors.collect():
            check_packages(config)
    with errors.collect():
        check_metric(config)
    with errors.collect():
        config.track.check()
    for role, each in config.roles().items():
        with errors.collect():
            models.check(each.model.name)
            check_cache(each.model.name)
            check_architecture("tester.model" if role == "tester" else "model.name", each.model.name)
            check_model(each)
            check_fp8(each)
    with errors.collect():
        check_teacher(config)
    with errors.collect():
        _check_travels(config)
    if not dry and config.runtime.name == "local":  # on Ray the ranks are actors; RunConfig has checked their number
        with errors.collect():
            check_processes(config)
    algorithms: dict[str, Algorithm] = {}
    with errors.collect():
        algorithms = make_algorithms(config)
    return algorithms


def _check_splits(config: RunConfig, task: Task) -> RunConfig:
    """Checks settings that refer to the data; returns the configuration with `epochs` resolved to `steps`."""
    for split in SPLITS:
        if not task.problems(split):
            raise DataError(f"the {split} split of {config.data.name} is empty")
    train, test = task.problems("train"), task.problems("test")[: config.eval.problems]
    check_source(config.checkpoint.metric, {each.source for each in test} | config.eval.benchmarks.keys())
    check_teacher_prompt(config, train[0])
    return _with_steps(config, len(train))


def measure_prompts(config: RunConfig, prepared: Prepared, *, dry: bool = False) -> Prepared:
    """Refuses overlong prompts, or drops them if data.filter_overlong_prompts is set."""
    found = measure(config, prepared.task, prepared.train, dry=dry)
    _, renderer = found.renderers.get(next(iter(config.roles())), (None, None))
    fitting, dropped = fit_benchmarks([each for each, _ in prepared.benchmarks], renderer)
    train = fit_rows(config, found.train, renderer)
    if short := len(found.train) - len(train):
        dropped["train"] = found.dropped.get("train", 0) + short
    fields = {**found.as_fields(), "train": train, "dropped": {**found.dropped, **dropped}}
    graded = [(each, task) for each, (_, task) in zip(fitting, prepared.benchmarks, strict=True)]
    return replace(prepared, config=_with_steps(config, len(train)), benchmarks=graded, **fields)


def _check_start(prepared: Prepared) -> None:
    """Starts an episode of an environment. Raises ConfigError if that fails."""
    loop = asyncio.new_event_loop()  # not asyncio.run, which would wait for threads that hang
    try:
        for _, renderer in list(prepared.renderers.values())[:1]:
            loop.run_until_complete(prepared.config.workflow.check_start(prepared.task, prepared.train, renderer))
    finally:
        for each in asyncio.all_tasks(loop):
            each.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def _with_steps(config: RunConfig, problems: int) -> RunConfig:
    try:
        return config.with_steps(problems)
    except ValidationError as error:
        raise ConfigError(
            f"epochs={config.epochs:g} of {problems:,} problems: {'; '.join(complaints(error))}"
        ) from None


def make_algorithms(config: RunConfig) -> dict[str, Algorithm]:
    """Builds the algorithm of each role, and checks that it fits the configuration."""
    found: dict[str, Algorithm] = {
        role: each.algo.make(each.rollout.max_tokens) for role, each in config.roles().items()
    }
    for algorithm in found.values():
        check_truncation(config, algorithm)
        check_reference(config, algorithm)
    if len(found) > 1 and any(map(has_critic, found.values())):
        raise ConfigError(f"workflow.name={config.workflow.name} supports no critic, but algo.make_with needs one")
    return found


def _load_data(config: RunConfig, errors: ErrorList) -> Data:
    """Loads both splits, apart from those that cannot be loaded."""
    found: dict[str, Sequence[Problem]] = {}
    for split, name in zip(SPLITS, ("train", config.data.held_out_split()), strict=True):
        with errors.collect():
            found[split] = config.data.load(name)
    return found


def _make_judge(config: RunConfig, problems: Data, *, dry: bool) -> Judge:
    """Builds the judge: the services of judge.url, else all nodes of the cluster, else this machine."""
    services = config.task.runs_programs and config.judge.url
    if config.runtime.name == "local" or dry or services:
        return config.judge.make(cache_root())
    from dojang.build.ray_judges import make_judge

    return make_judge(config, problems)


def _make_tasks(
    config: RunConfig,
    problems: Mapping[str, Sequence[Problem]],
    benchmarks: Sequence[Loaded],
    judge: Judge,
    errors: ErrorList,
) -> tuple[Task | None, list[tuple[Loaded, Task]]]:
    """Builds the task of the run and of each benchmark; None if the run's cannot be built."""

    async def make() -> tuple[Task | None, list[tuple[Loaded, Task]]]:
        task, graded = None, list[tuple[Loaded, Task]]()
        with errors.collect():
            task = await checked_task(config, problems, judge)
        for each in benchmarks:
            with errors.collect():
                graded.append((each, await _benchmark_task(each, judge)))
        return task, graded

    return asyncio.run(make())


async def _benchmark_task(benchmark: Loaded, judge: Judge) -> Task:
    """Builds a benchmark's task. Judge actors have only the run's own task, so other answers are graded here; programs
    are judged on the cluster for any task."""
    config, problems = benchmark.config, {"train": (), "test": benchmark.problems}
    with naming(benchmark.name):
        if config.task.runs_programs:
            return await checked_task(config, problems, judge)
        await _check_grading(task := config.task.make(problems), config, problems)
        return task


async def _check_grading(task: Task, config: RunConfig, problems: Mapping[str, Sequence[Problem]]) -> None:
    await check_rewards(task, problems)
    most = config.health.max_judge_errors
    await check_gradable(task, problems, config.task.name, most, user_code=config.task.user_code)


async def checked_task(config: RunConfig, problems: Mapping[str, Sequence[Problem]], judge: Judge) -> Task:
    """Builds a task and checks its rewards, and that the judge supports the languages of its problems."""
    task = config.task.make(problems, judge)
    await config.task.check_made(task, problems)
    await _check_grading(task, config, problems)
    if config.task.user_code:
        await check_parts(task, problems, config.algo.reward_weights)
    if config.task.runs_programs:
        for language in sorted(getattr(task, "languages", ())):
            await config.judge.check(judge, language)
    config.workflow.check_problems(task, problems.get("train", ()))
    if not isinstance(judge, MultiNodeJudge):
        return task
    from dojang.build.ray_judges import distribute_task

    return await distribute_task(task, config, judge)

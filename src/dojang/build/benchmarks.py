"""Loads the benchmarks of a training run (eval.benchmarks): their problems, and the settings each is evaluated with."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import TypeAdapter

from dojang.config.eval_config import GRADED_BY, BenchmarkConfig, EvalConfig, SamplingConfig, Task
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError
from dojang.types import Problem
from dojang.workflows.single_turn import SingleTurnConfig

__all__ = ["Loaded", "NameTaken", "load_benchmarks", "naming"]

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


class NameTaken(ConfigError):
    """A benchmark has the name of a data source."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A benchmark, ready to be graded."""

    name: str
    every: int
    config: RunConfig
    """The run's configuration with the benchmark's data, task and eval sections."""
    problems: Sequence[Problem]
    """The test split; after prompts are measured, the first eval.problems that fit."""


def load_benchmarks(config: RunConfig, held_out: Sequence[Problem]) -> list[Loaded]:
    """Loads the problems of all benchmarks; refuses a name that is also a data source of the held-out problems."""
    sources = {problem.source for problem in held_out}
    return [_load(config, name, each, sources) for name, each in config.eval.benchmarks.items()]


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Puts the benchmark's name before the message of an error in its settings."""
    try:
        yield
    except ConfigError as error:
        key = f"eval.benchmarks.{name}"
        raise ConfigError(f"{key}: {error}. Without {key}.task it is graded as the run's own problems") from error


def _load(config: RunConfig, name: str, benchmark: BenchmarkConfig, sources: set[str]) -> Loaded:
    key = f"eval.benchmarks.{name}"
    if name in sources:
        raise NameTaken(
            f"{key} has the name of a data source of the held-out problems, so both would log val/accuracy/{name}; "
            "choose another name"
        )
    try:
        problems = benchmark.data.load("test")
        task = benchmark.task or _fitting_task(config, benchmark)
    except DataError as error:
        raise DataError(f"{key}: {error}") from error
    if not problems:
        raise DataError(f"{key}: the test split of {benchmark.data.name} is empty")
    most = min(benchmark.problems or len(problems), len(problems))
    evaluation = EvalConfig(problems=most, **{name: getattr(benchmark, name) for name in SamplingConfig.model_fields})
    filtered = benchmark.data.filter_overlong_prompts or config.data.filter_overlong_prompts
    data = benchmark.data.model_copy(update={"filter_overlong_prompts": filtered})
    update = {"data": data, "task": task, "eval": evaluation, "workflow": SingleTurnConfig(), "tester": None}
    return Loaded(name, benchmark.every, config.model_copy(update=update), problems)


def _fitting_task(config: RunConfig, benchmark: BenchmarkConfig) -> Task:
    """Task that grades the dataset, with the settings of the run's task if that is of the same kind."""
    name = benchmark.data.task_name("test")
    found = {"name": name} if name else GRADED_BY[benchmark.data.name]
    own = config.task.model_dump() if config.task.name == found["name"] else {}
    return _TASK.validate_python({**own, **found}).for_benchmark()

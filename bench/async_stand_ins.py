"""The real loop with stand-ins for engine and trainer, which only take time: what a mode gains without contention."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean

from dojang.algos.grpo import GrpoConfig
from dojang.core.run_dir import RunDir
from dojang.loop.config import HealthConfig
from dojang.loop.health_check import HealthCheck
from dojang.loop.prompt_sampler import problem_at
from dojang.loop.rollout_workers import LocalWorkers
from dojang.loop.run import Run
from dojang.loop.run_state import State
from dojang.loop.train import train
from dojang.protocols import TokenValues, Trainer
from dojang.types import Completion, Group, Message, Metrics, Outcome, Problem, Sample, Sampling, Verdict

__all__ = ["CASES", "MODES", "Case", "Measured", "measure"]

MODES = ("sync", "overlap", "stream")
PROBLEMS = [Problem(f"stand-in/{at}", "stand-in", (Message("user", str(at)),), None) for at in range(64)]


@dataclass(frozen=True)
class Case:
    """Seconds that the parts of a step take."""

    name: str
    rollout_s: float
    """Of a group; of the longest possible one if lengths differ."""
    update_s: float
    prompts_per_step: int = 4
    geometric: bool = False
    """Whether the groups of a batch differ in length: geometric, with a mean of a quarter of the longest."""
    lag: int = 1

    def group_s(self, prompt_index: int) -> float:
        if not self.geometric:
            return self.rollout_s
        return min(self.rollout_s, Random(prompt_index).expovariate(4 / self.rollout_s))


CASES = (
    Case("balanced", 0.2, 0.2),
    Case("rollout twice as long as the update", 0.4, 0.2),
    Case("update twice as long as the rollout", 0.2, 0.4),
    Case("geometric lengths", 0.8, 0.2, prompts_per_step=8, geometric=True),
)


@dataclass(frozen=True)
class Measured:
    """A whole run."""

    step_s: float
    """Mean seconds of all steps, the first included, in which nothing overlaps."""
    rollout_s: float
    """Mean seconds of sampling one batch alone."""
    update_s: float
    idle: dict[str, float]
    """Mean idle shares of the steps after the first."""
    staleness: float
    samples: int

    @property
    def longest_s(self) -> float:
        """max(rollout, update)."""
        return max(self.rollout_s, self.update_s)


@dataclass
class Engine:
    """Takes `group_s` for a group, and decodes as many groups at a time as a batch has."""

    case: Case
    version: int = 0
    samples: int = 0
    slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self.slots = asyncio.Semaphore(self.case.prompts_per_step)

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        async with self.slots:
            version = self.version
            await asyncio.sleep(self.case.group_s(sampling.prompt_index))
        self.samples += n
        return [Completion((1,), (0.0,), "", "stop", version) for _ in range(n)]

    async def load(self, version: int) -> None:
        self.version = version

    async def close(self) -> None: ...


@dataclass
class Workflow:
    """Groups of two samples with different rewards."""

    engine: Engine

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        found = await self.engine.generate((0,), 2, Sampling(1.0, 1, prompt_index=prompt_index))
        verdicts = Verdict(Outcome.ACCEPTED, 1.0), Verdict(Outcome.WRONG, 0.0)
        samples = [Sample.of((0,), each, verdicts[at], at) for at, each in enumerate(found)]
        return Group(problem, prompt_index, tuple(samples))


class Evaluation:
    """An evaluation that takes no time."""

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        verdict = Verdict(Outcome.ACCEPTED, 1.0)
        return Group(problem, prompt_index, (Sample.of((0,), Completion((1,), (0.0,), "", "stop", 0), verdict),))


@dataclass
class StandInTrainer:
    """Takes `seconds` for an update."""

    seconds: float

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        await asyncio.sleep(self.seconds)
        return {}

    async def optim_step(self) -> Metrics:
        return {}

    async def publish(self, version: int) -> None: ...

    async def take_token_values(self) -> Sequence[TokenValues]:
        return ()

    async def save(self, path: Path) -> None: ...


@dataclass
class Tracker:
    """Keeps the metrics of training steps."""

    rows: list[Metrics] = field(default_factory=list)

    def metrics(self, step: int, values: Metrics) -> None:
        if "timing_s/step" in values:
            self.rows.append(values)

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None: ...

    def token_values(self, step: int, values: Sequence[TokenValues]) -> None: ...

    def close(self) -> None: ...


async def measure(case: Case, mode: str, steps: int) -> Measured:
    """Runs the loop in a mode."""
    with tempfile.TemporaryDirectory() as folder:
        engine, tracker = Engine(case), Tracker()
        run = make_run(case, mode, steps, Path(folder), engine, tracker)
        await train(run, State(), asyncio.Event())
    rows = tracker.rows[1:] or tracker.rows
    batches = [
        [case.group_s(at * case.prompts_per_step + i) for i in range(case.prompts_per_step)] for at in range(steps)
    ]
    return Measured(
        fmean(row["timing_s/step"] for row in tracker.rows),
        fmean(map(max, batches)),
        case.update_s,
        {who: fmean(row.get(f"perf/idle/{who}", 0.0) for row in rows) for who in ("trainer", "engine")},
        max(row["staleness/max"] for row in tracker.rows),
        engine.samples,
    )


def make_run(case: Case, mode: str, steps: int, folder: Path, engine: Engine, tracker: Tracker) -> Run:
    workflow, trainer = Workflow(engine), StandInTrainer(case.update_s)

    def problem(prompt_index: int) -> Problem:
        return problem_at(PROBLEMS, 0, prompt_index)

    return Run(
        seed=0,
        steps=steps,
        prompts_per_step=case.prompts_per_step,
        minibatches=1,
        eval_every=10**9,
        save_every=10**9,
        problems=PROBLEMS,
        held_out=PROBLEMS[:1],
        workflow=workflow,
        eval_workflow=Evaluation(),
        engine=engine,
        algorithm=GrpoConfig().make(max_tokens=1),
        trainer=_as_trainer(trainer),
        tracker=tracker,
        health=HealthCheck(HealthConfig()),
        directory=RunDir(folder),
        lag=0 if mode == "sync" else case.lag,
        workers=[LocalWorkers(workflow, engine, problem)] if mode == "stream" else (),
        weights_synced=True,
    )


def _as_trainer(trainer: StandInTrainer) -> Trainer:
    return trainer  # type: ignore[return-value]  # the loop calls no other method here

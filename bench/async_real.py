"""The loop with real parts: engine, trainer and a slow judge, with answers of geometric lengths."""

import asyncio
import gc
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from random import Random
from statistics import fmean

import torch
from rich.console import Console

from dojang.build import assemble
from dojang.config import recipe
from dojang.config.run_config import RunConfig
from dojang.core.run_dir import RunDir
from dojang.loop.run import Run
from dojang.loop.run_state import State
from dojang.loop.train import train
from dojang.planning.estimate import Subject, estimate
from dojang.planning.overlap import overlap_gain
from dojang.planning.shapes import find_shape
from dojang.planning.this_machine import this_machine
from dojang.planning.tokens_per_step import Lengths
from dojang.protocols import Task, TokenValues, Tracker
from dojang.types import Completion, Group, Metrics, Outcome, Problem, Sampling, Verdict
from lengths import geometric

__all__ = ["Setting", "Timed", "held_back", "measure", "middle", "planned_gain"]


@dataclass(frozen=True)
class Setting:
    """Size of the runs."""

    model: str
    steps: int
    mean_length: int
    max_tokens: int
    judge_s: float
    """Mean seconds of a verdict, exponential."""
    prompts_per_step: int = 8
    group_size: int = 8
    lag: int = 1
    overrides: Sequence[str] = ()

    def config(self, mode: str) -> RunConfig:
        return recipe.load(
            "quickstart",
            [
                f"model.name={self.model}",
                f"steps={self.steps}",
                f"rollout.prompts_per_step={self.prompts_per_step}",
                f"rollout.group_size={self.group_size}",
                f"rollout.max_tokens={self.max_tokens}",
                "train.lr=1e-6",
                "eval.problems=1",
                f"eval.every={10**6}",
                f"checkpoint.every={10**6}",
                f"loop.mode={mode}",
                *([] if mode == "sync" else [f"loop.lag={self.lag}"]),
                *self.overrides,
            ],
        )


@dataclass(frozen=True)
class Timed:
    """Mean seconds of the steps after the first, which warms up."""

    step_s: float
    rollout_s: float | None
    """None if groups of several batches are sampled at a time (stream)."""
    update_s: float
    idle: dict[str, float]
    """Idle shares."""
    tokens: float
    """Sampled tokens of a step."""
    staleness: float
    load_s: float
    """Seconds of loading weights into the engine."""
    pause_s: float
    """Those without decoding."""

    @property
    def gain(self) -> float:
        """Bound by the formula of `dojang plan`, with these measured times."""
        rollout = self.rollout_s or 0.0
        return overlap_gain(rollout, self.update_s, max(0.0, self.step_s - rollout - self.update_s))


class SlowJudge:
    """A task whose verdicts take time, and are right or wrong by chance: the same for every mode."""

    def __init__(self, task: Task, mean_s: float) -> None:
        self._task, self._mean_s = task, mean_s

    def problems(self, split: str) -> Sequence[Problem]:
        return self._task.problems(split)  # type: ignore[arg-type]

    async def grade(self, problem: Problem, text: str) -> Verdict:
        draw = Random(sha256(f"{problem.id}\n{text}".encode()).digest())
        if self._mean_s:
            await asyncio.sleep(draw.expovariate(1 / self._mean_s))
        right = draw.random() < 0.5
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right))


class Kept:
    """Keeps the metrics of training steps, besides the run's trackers."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self.rows: list[Metrics] = []

    def metrics(self, step: int, values: Metrics) -> None:
        if "timing_s/step" in values:
            self.rows.append(values)
        self._tracker.metrics(step, values)

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        self._tracker.groups(step, split, groups)

    def token_values(self, step: int, values: Sequence[TokenValues]) -> None:
        self._tracker.token_values(step, values)

    def close(self) -> None:
        self._tracker.close()


def measure(setting: Setting, mode: str) -> Timed:
    """Trains in a mode and times the steps."""
    prepared = assemble.prepare(setting.config(mode))
    prepared = replace(prepared, task=SlowJudge(prepared.task, setting.judge_s))
    with tempfile.TemporaryDirectory() as folder:
        run = assemble.build(prepared.config, prepared, RunDir(Path(folder)), Console(quiet=True))
        kept = Kept(run.tracker)
        _give_lengths(run, setting)
        asyncio.run(_train(replace(run, tracker=kept), prepared))
    del run
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the next run sizes its KV cache by the free memory
    return _timed(kept.rows[1:])


async def _train(run: Run, prepared: assemble.Prepared) -> None:
    try:
        await train(run, State(), asyncio.Event())
    finally:
        for each in (run.trainer, run.engine, prepared.judge):
            await each.close()
        run.tracker.close()


def _give_lengths(run: Run, setting: Setting) -> None:
    """Makes the engine end answers at geometric lengths, which depend on the prompt index alone."""
    engine = run.engine
    generate = engine.generate
    engine._scheduler._stop_criteria.end_tokens = frozenset()  # type: ignore[attr-defined]

    async def generate_drawn(prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        asked = []
        for at in range(n):
            index = sampling.prompt_index * n + at
            length = geometric(Random(index), setting.mean_length, setting.max_tokens)
            asked.append(generate(prompt, 1, replace(sampling, max_tokens=length, prompt_index=index)))
        return [completion for (completion,) in await asyncio.gather(*asked)]

    engine.generate = generate_drawn  # type: ignore[method-assign]


def _timed(rows: Sequence[Metrics]) -> Timed:
    def mean(name: str) -> float:
        return fmean(row.get(name, 0.0) for row in rows)

    rollouts = [row["timing_s/rollout"] for row in rows if "timing_s/rollout" in row]
    return Timed(
        mean("timing_s/step"),
        fmean(rollouts) if rollouts else None,
        mean("timing_s/update"),
        {who: mean(f"perf/idle/{who}") for who in ("trainer", "engine")},
        fmean(row["perf/tokens_per_s"] * row["timing_s/step"] for row in rows),
        max(row["staleness/max"] for row in rows),
        mean("timing_s/load"),
        mean("timing_s/load_pause"),
    )


def middle(rounds: Sequence[Timed]) -> Timed:
    """The round with the median step."""
    return sorted(rounds, key=lambda each: each.step_s)[(len(rounds) - 1) // 2]


def held_back(sync: Timed, other: Timed) -> str:
    """Says in words what kept a mode from its bound."""
    said = []
    if other.idle["trainer"] > 0.1:
        said.append(f"the trainer waited for rollouts {other.idle['trainer']:.0%} of the time")
    if other.idle["engine"] > 0.1:
        said.append(f"the engine waited for weights {other.idle['engine']:.0%}")
    for name, before, after in (
        ("rollouts", sync.rollout_s, other.rollout_s),
        ("updates", sync.update_s, other.update_s),
    ):
        if before and after and after > 1.1 * before:
            said.append(f"{name} took {after / before:.2f}x as long beside the other stage")
    return "; ".join(said) or "nothing"


def planned_gain(setting: Setting) -> float:
    """Bound that `dojang plan` gives beforehand; it knows nothing of the slow judge."""
    config = setting.config("sync")
    shape, _ = find_shape(setting.model, torch_engine=True)
    assert shape is not None
    lengths = Lengths(10, 10, setting.mean_length, setting.max_tokens)
    return estimate(Subject(config, {"policy": shape}, {"policy": lengths}), this_machine(), ranks=1).times.overlap_gain

"""Evaluations of a run at their steps: held-out problems, benchmarks, and the held-out loss of SFT."""

import asyncio
import math
from dataclasses import replace

from dojang.loop.evaluate import Benchmark, evaluate, evaluate_benchmark
from dojang.loop.metrics import StepTimer
from dojang.loop.run import Run
from dojang.loop.run_state import State
from dojang.loop.stoppable import or_stopped
from dojang.types import Metrics

__all__ = ["evaluate_due", "is_due", "is_eval_due"]


def is_due(run: Run, state: State, every: int) -> bool:
    """Whether something with a period of `every` steps is due; at the last step it always is."""
    return state.step % every == 0 or state.step >= run.steps


def is_eval_due(run: Run, state: State) -> bool:
    """Whether any evaluation is due at this step."""
    return _is_held_out_due(run, state) or any(_is_benchmark_due(run, state, each) for each in run.benchmarks)


async def evaluate_due(run: Run, state: State, stop: asyncio.Event) -> State:
    """Runs the evaluations due at this step: held-out problems and benchmarks."""
    before = state
    if _is_held_out_due(run, state):
        state = await _evaluate_held_out(run, state, stop)
    for benchmark in run.benchmarks:
        if _is_benchmark_due(run, state, benchmark):
            state = await _evaluate_one_benchmark(run, state, benchmark, stop)
    if state != before:
        run.ranking.check(state.figures, run.directory)
    return state


def _is_held_out_due(run: Run, state: State) -> bool:
    return is_due(run, state, run.eval_every) and state.step not in state.scores


def _is_benchmark_due(run: Run, state: State, benchmark: Benchmark) -> bool:
    return is_due(run, state, benchmark.every) and state.step not in state.benchmarks.get(benchmark.name, {})


async def _evaluate_held_out(run: Run, state: State, stop: asyncio.Event) -> State:
    timer = StepTimer()
    with timer("eval"):
        found = await or_stopped(stop, evaluate(run.eval_workflow, run.held_out))
    run.tracker.groups(state.step, "test", found.groups)
    figures = {**found.metrics, **await _eval_loss(run), **timer.seconds_by_stage}
    run.tracker.metrics(state.step, figures)
    scores = {**state.scores, state.step: found.score}
    return replace(state, scores=scores, figures={**state.figures, **figures})


async def _eval_loss(run: Run) -> Metrics:
    """Mean cross-entropy per token of the held-out completions, if any (SFT)."""
    if not run.eval_samples:
        return {}
    scored = await run.trainer.score(run.eval_samples)
    tokens = sum(sample.response_length for sample in run.eval_samples)
    return {"val/loss": -math.fsum(each for row in scored for each in row) / tokens}


async def _evaluate_one_benchmark(run: Run, state: State, benchmark: Benchmark, stop: asyncio.Event) -> State:
    timer, name = StepTimer(), benchmark.name
    with timer(f"eval/{name}"):
        found = await or_stopped(stop, evaluate_benchmark(benchmark))
    run.tracker.groups(state.step, f"test-{name}", found.groups)
    figures = {**found.metrics, **timer.seconds_by_stage}
    run.tracker.metrics(state.step, figures)
    scores = {**state.benchmarks.get(name, {}), state.step: found.score}
    return replace(state, benchmarks={**state.benchmarks, name: scores}, figures={**state.figures, **figures})

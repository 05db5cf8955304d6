"""Console output of a run: a progress bar in a terminal, plain lines elsewhere.

A closed pipe (`dojang train ... | head`) must not end the run: from then on nothing is printed.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from statistics import fmean
from types import MappingProxyType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

from dojang.core.run_dir import ACCURACY, REWARD, SOURCE_ACCURACY, SOURCE_REWARD, evaluation_name
from dojang.protocols import TokenValues
from dojang.track.completions import choose, compact, detailed
from dojang.types import Group, Metrics, Problem, Sample

__all__ = ["ConsoleTracker", "console_printer"]

NONE: Mapping[str, int] = MappingProxyType({})
WIDE_ENOUGH = 80
"""Terminal width, in columns, from which a progress bar fits beside the metrics."""


class ConsoleTracker:
    """A Tracker that shows step, reward, evaluation accuracy, tokens/s and ETA."""

    def __init__(
        self,
        console: Console,
        *,
        first: int,
        steps: int,
        eval_every: int,
        benchmarks: Mapping[str, int] = NONE,
        completions: int = 0,
    ) -> None:
        """`benchmarks` maps each benchmark to the number of steps between its evaluations; `completions` is the number
        of completions to show at every evaluation on the held-out problems."""
        self._console = console
        self._first = first
        self._steps = steps
        self._every = {"": eval_every, **benchmarks}
        self._step_times: list[float] = []
        self._eval_times: dict[str, list[float]] = {name: [] for name in self._every}
        self._score: float | None = None
        self._last: Metrics = {}
        self._progress: Progress | None = None
        self._completions: list[tuple[Problem, Sample]] = []
        self._most_completions = completions

    def metrics(self, step: int, values: Metrics) -> None:
        if (name := evaluation_name(values)) == "":
            self._score = values[ACCURACY]
            self._eval_times[""].append(values.get("timing_s/eval", 0.0))
            line = f"held-out accuracy {self._score:.1%}  reward {values[REWARD]:.3f}"
            if "val/loss" in values:
                line += f"  loss {values['val/loss']:.4f}"
        elif name is not None:
            self._eval_times[name].append(values.get(f"timing_s/eval/{name}", 0.0))
            accuracy, reward = values[f"{SOURCE_ACCURACY}{name}"], values[f"{SOURCE_REWARD}{name}"]
            line = f"{name} accuracy {accuracy:.1%}  reward {reward:.3f}"
        else:
            self._last = values
            self._step_times.append(values.get("timing_s/step", 0.0))
            line = self._format(step)
        if self._has_bar:
            self._ignore_closed_pipe(lambda: self._advance(step))
        else:
            self._ignore_closed_pipe(
                lambda: self._console.print(f"step {step}/{self._steps}  {line}", highlight=False, soft_wrap=True)
            )
        if name == "":
            self._ignore_closed_pipe(lambda: self._show_completions(step))

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        """Keeps completions of an evaluation until its metrics come."""
        if split == "test":
            self._completions = choose(groups, self._most_completions)

    def token_values(self, step: int, values: Sequence[TokenValues]) -> None:
        """Prints nothing."""

    def close(self) -> None:
        if self._progress is not None:
            self._ignore_closed_pipe(self._progress.stop)

    @property
    def _has_bar(self) -> bool:
        return self._console.is_terminal and not self._console.is_dumb_terminal

    def _show_completions(self, step: int) -> None:
        """Prints completions above the progress bar; one line each where there is none, to keep logs short."""
        if self._has_bar and self._completions:
            self._console.print(f"completions at step {step}, held-out accuracy {self._score:.1%}", highlight=False)
        for problem, sample in self._completions:
            shown = detailed(problem, sample) if self._has_bar else compact(problem, sample)
            self._console.print(shown, soft_wrap=not self._has_bar)
        self._completions = []

    def _advance(self, step: int) -> None:
        if self._progress is None:  # created late: a run that fails to start should leave the terminal alone
            columns: list[ProgressColumn] = [TextColumn("step"), MofNCompleteColumn(), TextColumn("{task.description}")]
            if self._console.width >= WIDE_ENOUGH:
                columns.insert(2, BarColumn(bar_width=20))
            self._progress = Progress(*columns, console=self._console)
            self._bar = self._progress.add_task("", total=self._steps, completed=self._first)
            self._progress.start()
        self._progress.update(self._bar, completed=step, description=self._format(step))

    def _format(self, step: int) -> str:
        parts = []
        if "actor/loss" in self._last and "actor/pg_loss" not in self._last:  # supervised fine-tuning
            parts.append(f"loss {self._last['actor/loss']:.4f}")
        elif "critic/rewards/mean" in self._last:
            parts.append(f"reward {self._last['critic/rewards/mean']:.3f}")
        if "tester/critic/rewards/mean" in self._last:
            parts.append(f"tester {self._last['tester/critic/rewards/mean']:.3f}")
        if self._score is not None:
            parts.append(f"eval {self._score:.1%}")
        if "perf/tokens_per_s" in self._last:
            parts.append(f"{self._last['perf/tokens_per_s']:,.0f} tok/s")
        if self._step_times:
            parts.append(f"ETA {_clock(self._seconds_left(step))}")
        return "  ".join(parts)

    def _seconds_left(self, step: int) -> float:
        """Estimates the remaining time from the mean duration of past steps and evaluations."""
        left = fmean(self._step_times) * (self._steps - step)
        for name, every in self._every.items():
            due = (self._steps - 1) // every - step // every
            evaluations = due + 1 if step < self._steps else 0  # the last step always evaluates
            left += evaluations * (fmean(self._eval_times[name]) if self._eval_times[name] else 0.0)
        return left

    def _ignore_closed_pipe(self, show: Callable[[], object]) -> None:
        try:
            show()
        except (OSError, SystemExit):  # rich turns a broken pipe into an exit
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, sys.__stdout__.fileno() if sys.__stdout__ else 1)
            os.close(silence)


def console_printer(console: Console) -> Callable[[str], None]:
    """Returns a function that prints a line from any thread and ignores a closed pipe."""

    def say(text: str) -> None:
        with suppress(OSError, SystemExit):  # rich turns a broken pipe into an exit
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    return say


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

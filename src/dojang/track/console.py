"""What a person sees while a run goes on: a live line in a terminal, plain lines elsewhere."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from dojang.types import Group, Metrics

__all__ = ["ConsoleTracker"]

_SCORE = "val/test_score/"


class ConsoleTracker:
    """A Tracker that shows step, reward, evaluation score, tokens/s and the time left."""

    def __init__(self, console: Console, *, first: int, steps: int) -> None:
        self._console = console
        self._first = first
        self._steps = steps
        self._started = time.monotonic()
        self._score: float | None = None
        self._last: Metrics = {}
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                console=console,
            )
            self._bar = self._progress.add_task("evaluating before training", total=steps, completed=first)
            self._progress.start()

    def metrics(self, step: int, values: Metrics) -> None:
        scores = [value for name, value in values.items() if name.startswith(_SCORE)]
        if scores:
            self._score = sum(scores) / len(scores)
        else:
            self._last = values
        text = self._describe(step)
        if self._progress is not None:
            self._progress.update(self._bar, completed=step, description=text)
        elif scores:
            self._console.print(f"step {step}/{self._steps}  held-out accuracy {self._score:.1%}", highlight=False)
        else:
            self._console.print(f"step {step}/{self._steps}  {text}", highlight=False)

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        return None

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _describe(self, step: int) -> str:
        parts = []
        if "critic/rewards/mean" in self._last:
            parts.append(f"reward {self._last['critic/rewards/mean']:.3f}")
        if self._score is not None:
            parts.append(f"eval {self._score:.1%}")
        if "perf/tokens_per_s" in self._last:
            parts.append(f"{self._last['perf/tokens_per_s']:,.0f} tok/s")
        if step > self._first:
            # Evaluations and saves are in the elapsed time too, so the estimate includes them.
            pace = (time.monotonic() - self._started) / (step - self._first)
            parts.append(f"ETA {_clock(pace * (self._steps - step))}")
        return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

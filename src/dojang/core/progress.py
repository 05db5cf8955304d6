"""Progress bars of commands and of the Python API; training has a line of metrics instead (track/console.py)."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

__all__ = ["ProgressBars"]


class ProgressBars:
    """A bar for each name: count, total, remaining time and a note. The bars disappear at the end; a console that is no
    terminal shows none."""

    def __init__(self, console: Console | None = None, *, shown: bool = True) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not shown)
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, name: str, done: int, total: int, note: str = "") -> None:
        """Sets the bar of a name, which appears with its first update."""
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._bars[name], completed=done, total=total, note=note)

"""Runs that the viewer shows: the directories given, and all runs in those that hold several."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

from dojang.core.errors import RunDirError
from dojang.core.run_files import RunFiles
from dojang.viewer.viewed_run import ViewedRun

__all__ = ["RunList"]

T = TypeVar("T")
_THREADS = 8
_REFRESH_S = {False: 2.0, True: 30.0}
"""Seconds between two looks for new runs in a local directory, and in S3."""


class RunList:
    """Runs by id: the name of the directory, with a number where two have the same."""

    def __init__(self, locations: Sequence[Path | str], directory: Path) -> None:
        """Raises RunDirError if a location is neither a run nor holds runs."""
        self._directory = directory
        self._lock = Lock()
        self._askers = ThreadPoolExecutor(_THREADS, "runs")
        self._runs: dict[str, ViewedRun] = {}
        self._parents: dict[str, tuple[RunFiles, float]] = {}
        for location in locations:
            files = RunFiles(location)
            if _is_run(files):
                self._add(files)
            else:
                self._parents[files.location] = files, -1e9
                if not self._look_below(files):
                    raise RunDirError(
                        f"{files.location} holds no run: give the directory of a run, such as runs/quickstart-1, "
                        "or one that holds runs, such as runs"
                    )

    def all(self) -> list[ViewedRun]:
        """All runs; finds those that have appeared since, and drops those that are gone."""
        with self._lock:
            for location, (files, looked) in list(self._parents.items()):
                if time.monotonic() - looked > _REFRESH_S[files.is_remote]:
                    self._parents[location] = files, time.monotonic()
                    self._look_below(files)
            return list(self._runs.values())

    def each(self, answer: Callable[[ViewedRun], T]) -> list[T]:
        """Answers of all runs, asked at the same time: in S3 each takes several round trips."""
        return list(self._askers.map(answer, self.all()))

    def get(self, name: str) -> ViewedRun:
        """A run by its id. Raises KeyError for another."""
        with self._lock:
            return self._runs[name]

    def close(self) -> None:
        with self._lock:
            for run in self._runs.values():
                run.close()
        self._askers.shutdown()

    def _look_below(self, files: RunFiles) -> bool:
        below = [files.below(name) for name in sorted(files.folders())]
        found = [each for each, is_run in zip(below, self._askers.map(_is_readable_run, below), strict=True) if is_run]
        there = {each.location for each in found}
        for name, run in list(self._runs.items()):
            if run.files.location.rpartition("/")[0] == files.location and run.files.location not in there:
                self._runs.pop(name).close()
        for each in found:
            self._add(each)
        return bool(found)

    def _add(self, files: RunFiles) -> None:
        if any(run.files.location == files.location for run in self._runs.values()):
            return
        name = files.name or "run"
        number = 2
        while name in self._runs:
            name, number = f"{files.name}-{number}", number + 1
        self._runs[name] = ViewedRun(name, files, self._directory)


def _is_run(files: RunFiles) -> bool:
    return files.info("config.yaml") is not None or files.info("metrics.jsonl") is not None


def _is_readable_run(files: RunFiles) -> bool:
    """Whether a directory beside others is a run; one of another user, without permission, does not count."""
    try:
        return _is_run(files)
    except (OSError, RunDirError):
        return False

"""Metrics of a run as series, read again as far as metrics.jsonl has grown."""

import json
import math
from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise
from threading import Lock
from typing import Any

from dojang.core.errors import RunDirError
from dojang.core.run_files import FileInfo, RunFiles
from dojang.track.registry import find

__all__ = ["MOST_POINTS", "MetricLog", "thin_out"]

MOST_POINTS = 2_000
_FILE = "metrics.jsonl"
_TAIL = 512
"""Bytes before the end that are read again: a run that was rewound and goes on has others there."""
Series = tuple["array[int]", "array[float]"]


class MetricLog:
    """Series of metrics.jsonl by name."""

    def __init__(self, files: RunFiles) -> None:
        self._files = files
        self._lock = Lock()
        self._seen: FileInfo | None = None
        self._clear()
        self.version = 0
        """Changes whenever there are other values."""
        self.trouble = ""
        """Why the file cannot be read, if that is so."""

    def _clear(self) -> None:
        self._series: dict[str, Series] = {}
        self._end, self._tail = 0, b""
        self.last_step = 0
        self.damaged = 0
        """Number of lines that are no JSON objects with a step."""

    def update(self) -> None:
        """Reads what is new; all of the file if it was rewound. A file that cannot be read is noted in `trouble`: one
        such run must not hide the others."""
        with self._lock:
            try:
                self._read_new()
            except RunDirError as error:
                self.trouble = str(error)
            else:
                self.trouble = ""

    def _read_new(self) -> None:
        info = self._files.info(_FILE)
        if info == self._seen:
            return
        start = self._end - len(self._tail)
        new = (self._files.read(_FILE, start) if info else None) or b""
        if not new.startswith(self._tail):
            self._clear()
            self.version += 1
            new = (self._files.read(_FILE) if info else None) or b""
        self._append(new[len(self._tail) :])
        self._seen = info

    def _append(self, content: bytes) -> None:
        whole = content[: content.rfind(b"\n") + 1]  # the last line may still be being written
        for line in whole.splitlines():
            self._add(line)
        if whole:
            self._end += len(whole)
            self._tail = (self._tail + whole)[-_TAIL:]
            self.version += 1

    def _add(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            step = int(row["step"])
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            self.damaged += 1
            return
        self.last_step = max(self.last_step, step)
        for name, value in row.items():
            if name != "step" and isinstance(value, int | float) and abs(step) < 2**62:
                steps, values = self._series.setdefault(name, (array("q"), array("d")))
                steps.append(step)
                values.append(_number(value))

    def catalogue(self) -> list[dict[str, str]]:
        """Name, meaning, unit and group of every metric there is."""
        with self._lock:
            names = sorted(self._series)
        return [_entry(name) for name in names]

    def series(self, names: Iterable[str], most: int = MOST_POINTS) -> dict[str, dict[str, list[Any]]]:
        """Steps and values of metrics; without those that do not exist."""
        with self._lock:
            found = {name: (list(pair[0]), list(pair[1])) for name in names if (pair := self._series.get(name))}
        return {name: thin_out(*pair, most) for name, pair in found.items()}

    def last(self, name: str) -> float | None:
        """Newest value of a metric; None without one."""
        with self._lock:
            pair = self._series.get(name)
            return _finite(pair[1][-1]) if pair else None


def thin_out(steps: Sequence[int], values: Sequence[float], most: int) -> dict[str, list[Any]]:
    """At most `most` points: the smallest, the largest and the last of equal parts, so that no spike is lost."""
    places: Sequence[int] = range(len(steps))
    if len(steps) > most:
        parts = max(most // 3, 1)
        bounds = [len(steps) * part // parts for part in range(parts + 1)]
        kept: set[int] = set()
        for first, last in pairwise(bounds):
            here = [place for place in range(first, last) if math.isfinite(values[place])] or [first]
            kept |= {min(here, key=values.__getitem__), max(here, key=values.__getitem__), last - 1}
        places = sorted(kept)
    return {"step": [steps[place] for place in places], "value": [_finite(values[place]) for place in places]}


def _entry(name: str) -> dict[str, str]:
    known = find(name)
    group = name.partition("/")[0] if "/" in name else ""
    return {
        "name": name,
        "help": known.meaning if known else "",
        "unit": known.unit if known else "",
        "group": group,
    }


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

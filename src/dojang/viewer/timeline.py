"""Timeline of a run: what the trainer, the engine and rollout workers did when.

Spans come from timeline.jsonl. A run without it has durations of stages in its metrics; those are laid one after the
other, which tells how long each took and not what went on at the same time.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

from dojang.core.run_files import FileInfo, RunFiles
from dojang.viewer import parameters
from dojang.viewer.metric_log import MetricLog
from dojang.viewer.parameters import Given

__all__ = ["Timeline"]

_MOST = 20_000
"""Spans in a reply."""
_STAGES = ("idle_engine", "wait", "rollout", "teacher", "update", "publish", "load", "eval")
"""Stages of a step that have a duration in the metrics, in their order."""
_STEP = "timing_s/step"
Span = dict[str, Any]


class Timeline:
    """Spans of a run."""

    def __init__(self, files: RunFiles, metrics: MetricLog) -> None:
        self._files, self._metrics = files, metrics
        self._read: tuple[FileInfo | None, list[Span]] = None, []

    def reply(self, given: Given) -> dict[str, Any]:
        """Spans of the steps asked for, the first 20,000; steps that there are; where the spans come from."""
        spans, source = self._recorded(), "spans"
        if not spans:
            spans, source = list(self._durations()), "durations"
        steps = sorted({span["step"] for span in spans})
        low = parameters.whole(given, "from_step", steps[0] if steps else 0) or 0
        high = parameters.whole(given, "to_step", steps[-1] if steps else 0) or 0
        found = [span for span in spans if low <= span["step"] <= high]
        return {
            "spans": found[:_MOST],
            "steps": [steps[0], steps[-1]] if steps else [],
            "source": source if spans else "none",
            "cut": len(found) > _MOST,
        }

    def _recorded(self) -> list[Span]:
        info = self._files.info("timeline.jsonl")
        if info != self._read[0]:
            lines = (self._files.read("timeline.jsonl") or b"").splitlines() if info else ()
            self._read = info, sorted(_spans(lines), key=lambda span: float(span["start"]))
        return self._read[1]

    def _durations(self) -> Iterable[Span]:
        """Spans from the durations of stages, one step after the other."""
        self._metrics.update()
        names = {stage: f"timing_s/{stage}" for stage in _STAGES}
        series = self._metrics.series([*names.values(), _STEP], most=10**9)
        values = {name: dict(zip(found["step"], found["value"], strict=True)) for name, found in series.items()}
        at = 0.0
        for step in sorted({step for found in values.values() for step in found}):
            began = at
            for stage, name in names.items():
                if (seconds := values.get(name, {}).get(step)) and seconds > 0:
                    yield {"step": step, "who": "run", "stage": stage, "start": at, "end": at + seconds}
                    at += seconds
            at = max(at, began + (values.get(_STEP, {}).get(step) or 0.0))


def _spans(lines: Iterable[bytes]) -> Iterable[Span]:
    """Spans of lines; skips those that are damaged or still being written."""
    for line in lines:
        try:
            row = json.loads(line)
            start, end = float(row["start"]), float(row["end"])
            span = {"step": int(row["step"]), "who": str(row["who"]), "stage": str(row["stage"])}
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
        if math.isfinite(start) and math.isfinite(end):
            yield span | {"start": start, "end": end}

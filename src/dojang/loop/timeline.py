"""Timeline: what the trainer, the engine and rollout workers did when, as spans in timeline.jsonl.

    {"step": 3, "who": "trainer", "stage": "update", "start": 1760000000.25, "end": 1760000001.5}

Spans of one `who` do not overlap: a stage that begins within another interrupts it. A step ends all spans; what goes on
continues in a span of the next step. So the file has a few lines per step, however many groups are sampled in it.
"""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from dojang.core.run_dir import append_whole, disk_errors

__all__ = ["Timeline", "current_timeline", "span"]

TRAINER_STAGES = ("wait", "teacher", "update", "publish", "checkpoint")
_MERGE_S = 0.05
"""Longest pause between two spans of the same stage that are recorded as one."""
_MIN_IDLE_S = 0.001

_current: ContextVar["Timeline | None"] = ContextVar("timeline", default=None)


@dataclass(slots=True)
class _Span:
    who: str
    stage: str
    start: float
    end: float


@dataclass(slots=True)
class _Open:
    """A stage that goes on, `count` times at once. `start` is None while another one interrupts it."""

    stage: str
    count: int
    start: float | None


def current_timeline() -> "Timeline | None":
    """Returns the timeline of this run, if it has one."""
    return _current.get()


@contextmanager
def span(stage: str) -> Iterator[None]:
    """Records a stage of the trainer or the engine in this run's timeline, if it has one."""
    timeline = _current.get()
    who = timeline.who(stage) if timeline is not None else ""
    if timeline is None or not who:
        yield
        return
    timeline.begin(who, stage)
    try:
        yield
    finally:
        timeline.end(who, stage)


class Timeline:
    """Collects spans while its context is open, and appends them to a file at the end of each step."""

    def __init__(self, path: Path, step: int, *, streams: bool) -> None:
        """`streams`: rollouts are those of workers (`hold`), not of the engine."""
        self._path, self._streams = path, streams
        self._clock_offset = time.time() - time.monotonic()  # spans do not overlap if the wall clock is set back
        self._open: dict[str, list[_Open]] = {}
        self._closed: list[_Span] = []
        self._holders: set[str] = set()
        self._engine_since: float | None = None
        """End of the engine's last span."""
        self._step = step

    async def __aenter__(self) -> Self:
        _current.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.set(None)
        self.flush(self._step)

    def who(self, stage: str) -> str:
        """Returns trainer or engine; empty for activities that are no stage, such as a problem of an evaluation."""
        if stage in TRAINER_STAGES:
            return "trainer"
        if stage == "load" or stage.startswith("eval") or (stage == "rollout" and not self._streams):
            return "engine"
        return ""

    def begin(self, who: str, stage: str) -> None:
        """Begins a stage, or one more of it at the same time."""
        now, stages = self._now(), self._open.setdefault(who, [])
        if (same := _find(stages, stage)) is not None:
            same.count += 1
            return
        if stages:
            self._interrupt(who, stages[-1], now)
        stages.append(_Open(stage, 1, now))

    def end(self, who: str, stage: str) -> None:
        """Ends a stage; one that it interrupted goes on."""
        now, stages = self._now(), self._open[who]
        same = _find(stages, stage)
        if same is None:  # ended with the timeline
            return
        same.count -= 1
        if same.count:
            return
        self._interrupt(who, same, now)
        stages.remove(same)
        if stages and stages[-1].start is None:
            stages[-1].start = now

    def hold(self, workers: Iterable[str]) -> None:
        """Records which rollout workers have prompts now: their rollouts begin and end with that."""
        now_held = set(workers)
        for worker in sorted(now_held - self._holders):
            self.begin(worker, "rollout")
        for worker in sorted(self._holders - now_held):
            self.end(worker, "rollout")
        self._holders = now_held

    def flush(self, step: int) -> None:
        """Writes all spans up to now as those of this step, if any has ended."""
        now, self._step = self._now(), step
        if not self._closed:
            return
        for who, stages in self._open.items():
            if stages:
                self._interrupt(who, stages[-1], now)
                stages[-1].start = now
        spans = sorted(self._with_idle(_merged(self._closed), now), key=lambda each: (each.start, each.who))
        self._closed = []
        lines = [self._line(step, each) for each in spans if each.end > each.start]
        with disk_errors(self._path):
            append_whole(self._path, "".join(lines).encode())

    def _interrupt(self, who: str, each: _Open, now: float) -> None:
        if each.start is not None:
            self._closed.append(_Span(who, each.stage, each.start, now))
        each.start = None

    def _with_idle(self, spans: list[_Span], now: float) -> Iterator[_Span]:
        """The spans, and the time between those of the engine up to now. Workers sample instead of it if they stream:
        the times without a span are theirs."""
        yield from spans
        if self._streams:
            return
        for each in [each for each in spans if each.who == "engine"] + [_Span("", "", now, now)]:
            if self._engine_since is not None and each.start - self._engine_since > _MIN_IDLE_S:
                yield _Span("engine", "idle", self._engine_since, each.start)
            self._engine_since = each.end

    def _line(self, step: int, each: _Span) -> str:
        start, end = (round(each_s + self._clock_offset, 4) for each_s in (each.start, each.end))
        return json.dumps({"step": step, "who": each.who, "stage": each.stage, "start": start, "end": end}) + "\n"

    def _now(self) -> float:
        return time.monotonic()


def _find(stages: list[_Open], stage: str) -> _Open | None:
    return next((each for each in stages if each.stage == stage), None)


def _merged(spans: list[_Span]) -> list[_Span]:
    """Joins spans of the same stage with nothing but a short pause between them; each who's are in order."""
    last: dict[str, _Span] = {}
    found = []
    for each in sorted(spans, key=lambda each: each.start):
        before = last.get(each.who)
        if before is not None and before.stage == each.stage and each.start - before.end <= _MERGE_S:
            before.end = each.end
        else:
            last[each.who] = each
            found.append(each)
    return found

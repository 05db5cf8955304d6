"""A thread that brings what metrics.jsonl says to a tracker outside of the run.

The file is the complete record, so nothing has to be queued: the thread remembers, in the run directory, up to where
its tracker has been told, and goes on from there; after an outage, after a resume, or later (`dojang track`). The loop
knows nothing of it and never waits for it. Only at the end of a run it gets a bounded time to catch up; what it could
not deliver by then is said.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dojang.core.run_dir import RunDir, write_atomic

__all__ = ["Couriers", "Row", "Sink"]

POLL_S = 1.0
"""How often the file is looked at."""
FIRST_RETRY_S, LONGEST_RETRY_S, LAST_RETRY_S = 1.0, 60.0, 1.0
"""Between attempts to reach a tracker that is down: at first, at most, and once the run has ended."""
HURRY_S = 5.0
"""For the rest of a run that was stopped or has failed: whoever stopped it may not wait."""
CLOSE_S = 1.0
"""For the end of what it is about to do when it is closed."""
AT_A_TIME = 100
"""Rows handed over in one go; up to which the place is then remembered."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of metrics.jsonl."""

    step: int
    values: dict[str, float]
    seen: float
    """When it was read, in seconds since 1970. The same at every attempt to deliver it."""


class Sink(Protocol):
    """A tracker outside of the run. Each verb may take long, or raise; then it is called again later."""

    @property
    def name(self) -> str:
        """What people call it; its place is remembered under this name."""

    @property
    def address(self) -> str:
        """Where it keeps what it is told, also for later lives of the run; empty if nowhere. At another address it is
        told everything from the beginning."""

    def begin(self, memory: dict[str, Any], keep: Callable[[], None]) -> None:
        """Make it ready to be told. What is put into `memory` is there again after a resume; `keep` saves it now."""

    def tell(self, rows: Sequence[Row]) -> None:
        """Deliver these."""

    def end(self, status: str) -> str:
        """The run is over (finished, interrupted, failed), its files are written and all rows have been told.
        Returns what a person should know, or nothing."""

    def close(self) -> None:
        """Let go of what it holds here, within a moment."""


class Couriers:
    """One for each Sink."""

    def __init__(
        self, sinks: Sequence[Sink], directory: RunDir, say: Callable[[str], None], command: str, timeout_s: float
    ) -> None:
        """`command` is what delivers later what could not be delivered within `timeout_s` of the end."""
        self._couriers = [_Courier(sink, directory, say, command) for sink in sinks]
        self._timeout_s = timeout_s

    def start(self) -> None:
        """Go to work. What is in metrics.jsonl now is there to stay: a resumed run has been rewound."""
        for courier in self._couriers:
            courier.start()

    def finish(self, status: str, *, hurry: bool = False) -> bool:
        """The run is over (finished, interrupted, failed). Wait a while for the rest; whether all was delivered."""
        patience = min(self._timeout_s, HURRY_S) if hurry else self._timeout_s
        deadline = time.monotonic() + patience
        for courier in self._couriers:
            courier.end(status)
        told = [courier.wait(max(0.0, deadline - time.monotonic())) for courier in self._couriers]
        return all(told)

    def close(self) -> None:
        """Stop, whatever is left."""
        for courier in self._couriers:
            courier.close()


class _Courier:
    """Tells one Sink."""

    def __init__(self, sink: Sink, directory: RunDir, say: Callable[[str], None], command: str) -> None:
        self._sink = sink
        self._directory = directory
        self._say = say
        self._command = command
        self._thread = threading.Thread(target=self._work, name=f"track-{sink.name}", daemon=True)
        self._wake, self._given_up = threading.Event(), threading.Event()
        self._keeping = threading.Lock()
        self._status: str | None = None
        self._begun = self._done = False
        self._trouble = ""
        self._waiting: list[Row] = []
        self._reached = self._place = 0
        self._memory: dict[str, Any] = {}

    def start(self) -> None:
        path = self._directory.delivered(self._sink.name)
        known = json.loads(path.read_bytes()) if path.exists() else {}
        if known.get("address") != self._sink.address:
            known = {}
        self._memory = known.get("memory", {})
        size = self._directory.metrics.stat().st_size if self._directory.metrics.exists() else 0
        self._place = min(known.get("bytes", 0), size)
        self._keep()  # now: a place beyond the end would hide the steps that are done again
        self._thread.start()

    def end(self, status: str) -> None:
        """The run is over; nothing will be written any more."""
        self._status = status
        self._wake.set()

    def wait(self, seconds: float) -> bool:
        """For the rest to be delivered, but no longer than this. Returns whether all of it was, and says if not."""
        self._thread.join(seconds)
        self._give_up()
        if not self._done:
            self._say(
                f"{self._sink.name}: {self._left()} not delivered ({self._trouble or 'there was no time left'}); "
                f"nothing is lost, it is all in {self._directory.path}. To deliver it later: {self._command}"
            )
        return self._done

    def close(self) -> None:
        self._give_up()
        self._wake.set()
        self._sink.close()
        if self._thread.is_alive():  # what it has begun to tell, nobody else should tell at the same time
            self._thread.join(CLOSE_S)

    def _give_up(self) -> None:
        with self._keeping:  # what the thread is about to write comes before, or never
            self._given_up.set()

    def _work(self) -> None:
        retry = FIRST_RETRY_S
        while not self._given_up.is_set():
            ending = self._status  # before reading: what was written by then is read
            try:
                self._deliver()
                if self._given_up.is_set():
                    return
                if ending is not None:
                    remark = self._sink.end(ending)
                    self._done = True
                    if remark:
                        self._say(f"{self._sink.name}: {remark}")
                    return
            except Exception as error:  # a stranger's library may raise anything, and none of it concerns the run
                self._complain(error)
                if ending is None:
                    self._wake.wait(retry)
                else:
                    self._given_up.wait(LAST_RETRY_S)
                retry = min(2 * retry, LONGEST_RETRY_S)
            else:
                retry = FIRST_RETRY_S
                self._recovered()
                self._wake.wait(POLL_S)

    def _deliver(self) -> None:
        if not self._begun:
            self._sink.begin(self._memory, self._keep)
            self._begun = True
        while not self._given_up.is_set():
            if not self._waiting:
                self._waiting, self._reached = self._read()
            if not self._waiting or self._given_up.is_set():
                return
            self._sink.tell(self._waiting)
            self._waiting, self._place = [], self._reached
            self._keep()

    def _read(self) -> tuple[list[Row], int]:
        """The next rows, and where they end."""
        rows: list[Row] = []
        place = self._place
        if not self._directory.metrics.exists():
            return rows, place
        with self._directory.metrics.open("rb") as file:
            file.seek(place)
            for line in file:
                if not line.endswith(b"\n") or len(rows) == AT_A_TIME:
                    break
                values = json.loads(line)
                rows.append(Row(int(values.pop("step")), values, time.time()))
                place += len(line)
        return rows, place

    def _keep(self) -> None:
        with self._keeping:
            if self._sink.address and not self._given_up.is_set():  # the directory may be somebody else's by then
                known = {"address": self._sink.address, "bytes": self._place, "memory": self._memory}
                write_atomic(self._directory.delivered(self._sink.name), json.dumps(known).encode())

    def _complain(self, error: Exception) -> None:
        first = not self._trouble
        self._trouble = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if first and self._status is None:
            self._say(f"{self._sink.name}: {self._trouble}; the run goes on, and what is missed is delivered later")

    def _recovered(self) -> None:
        if self._trouble:
            self._trouble = ""
            self._say(f"{self._sink.name}: is back, and has been told all it had missed")

    def _left(self) -> str:
        """What the sink has not been told, in words."""
        lines = 0
        if self._directory.metrics.exists():
            with self._directory.metrics.open("rb") as file:
                file.seek(self._place)
                lines = sum(1 for _ in file)
        return f"{lines} lines of metrics and what comes after them were" if lines else "the end of the run was"

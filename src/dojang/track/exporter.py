"""Exports metrics.jsonl to services outside the run, in background threads with retry.

metrics.jsonl is the complete record, so nothing is queued: each thread saves, in the run directory, the position up to
which its sink has the file, and continues from there after an outage, after a resume, or later (`dojang track`). The
training loop never waits for it. Only at the end of a run it gets a bounded time to catch up, and then reports what it
could not deliver.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dojang.core.run_dir import RunDir, write_atomic

__all__ = ["Exporters", "Row", "Sink"]

POLL_S = 1.0
"""Seconds between reads of metrics.jsonl."""
FIRST_RETRY_S, LONGEST_RETRY_S, LAST_RETRY_S = 1.0, 60.0, 1.0
"""Seconds between retries while a sink is down: the first, the longest, and after the run has ended."""
HURRY_S = 5.0
"""Seconds to deliver the rest of a run that was interrupted or failed: the user may not want to wait."""
CLOSE_S = 1.0
"""Seconds to finish the current write when closed."""
BATCH_ROWS = 100
"""Rows written in one call; the position is saved after each."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of metrics.jsonl."""

    step: int
    values: dict[str, float]
    read_at: float
    """Unix time at which the line was read; the same at every retry."""


class Sink:
    """A tracker outside the run. Each method may take long, or raise; it is then called again later."""

    name: str
    """Name shown to users; the position is saved under it."""
    address = ""
    """Address at which the sink stores data, across resumes of the run; empty if it stores none. A new address gets all
    rows from the beginning."""

    def start(self, state: dict[str, Any], save_state: Callable[[], None]) -> None:
        """Connects. `state` survives a resume; `save_state` saves it now."""

    def write_rows(self, rows: Sequence[Row]) -> None:
        """Delivers these rows."""
        raise NotImplementedError

    def finish(self, status: str) -> str:
        """Ends the export: the run is over (finished, interrupted, failed), its files are written and all rows are
        delivered. Returns a message for the user, or an empty string."""
        return ""

    def close(self) -> None:
        """Releases resources, quickly."""


class Exporters:
    """One exporter thread for each Sink."""

    def __init__(
        self, sinks: Sequence[Sink], directory: RunDir, say: Callable[[str], None], command: str, timeout_s: float
    ) -> None:
        """`command` delivers later what could not be delivered within `timeout_s` of the end."""
        self._exporters = [_Exporter(sink, directory, say, command) for sink in sinks]
        self._timeout_s = timeout_s

    def __len__(self) -> int:
        return len(self._exporters)

    def start(self) -> None:
        """Starts the threads. Call it after a resumed run has truncated metrics.jsonl to its checkpoint."""
        for exporter in self._exporters:
            exporter.start()

    def finish(self, status: str, *, hurry: bool = False) -> bool:
        """Waits for the rest after the run has ended (finished, interrupted, failed); returns whether all was
        delivered."""
        timeout_s = min(self._timeout_s, HURRY_S) if hurry else self._timeout_s
        deadline = time.monotonic() + timeout_s
        for exporter in self._exporters:
            exporter.finish(status)
        delivered = [exporter.wait(max(0.0, deadline - time.monotonic())) for exporter in self._exporters]
        return all(delivered)

    def close(self) -> None:
        """Stops the threads, delivered or not."""
        for exporter in self._exporters:
            exporter.close()


class _Exporter:
    """Exports to one Sink."""

    def __init__(self, sink: Sink, directory: RunDir, say: Callable[[str], None], command: str) -> None:
        self._sink = sink
        self._directory = directory
        self._say = say
        self._command = command
        self._thread = threading.Thread(target=self._work, name=f"track-{sink.name}", daemon=True)
        self._wake, self._given_up = threading.Event(), threading.Event()
        self._saving = threading.Lock()
        self._status: str | None = None
        self._started = self._done = False
        self._error = ""
        self._rows: list[Row] = []
        self._rows_end = self._position = 0
        self._state: dict[str, Any] = {}

    def start(self) -> None:
        path = self._directory.delivered(self._sink.name)
        known = json.loads(path.read_bytes()) if path.exists() else {}
        if known.get("address") != self._sink.address:
            known = {}
        self._state = known.get("memory", {})
        size = self._directory.metrics.stat().st_size if self._directory.metrics.exists() else 0
        self._position = min(known.get("bytes", 0), size)
        self._save_state()  # now: a position past the end would skip steps that are run again
        self._thread.start()

    def finish(self, status: str) -> None:
        """Marks the end of the run: metrics.jsonl is complete."""
        self._status = status
        self._wake.set()

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for the rest. Returns whether all was delivered, and reports it if not."""
        self._thread.join(seconds)
        self._give_up()
        if not self._done:
            self._say(
                f"{self._sink.name}: {self._remaining()} not delivered ({self._error or 'timed out'}); "
                f"nothing is lost, it is all in {self._directory.path}. To deliver it later: {self._command}"
            )
        return self._done

    def close(self) -> None:
        self._give_up()
        self._wake.set()
        self._sink.close()
        if self._thread.is_alive():  # a successor must not write the same rows concurrently
            self._thread.join(CLOSE_S)

    def _give_up(self) -> None:
        with self._saving:  # the thread writes its position before this, or never
            self._given_up.set()

    def _work(self) -> None:
        retry = FIRST_RETRY_S
        while not self._given_up.is_set():
            ending = self._status  # read before the file: all rows written by then are delivered
            try:
                self._deliver()
                if self._given_up.is_set():
                    return
                if ending is not None:
                    remark = self._sink.finish(ending)
                    self._done = True
                    if remark:
                        self._say(f"{self._sink.name}: {remark}")
                    return
            except Exception as error:  # a library may raise anything; none of it may end the run
                self._report_error(error)
                if ending is None:
                    self._wake.wait(retry)
                else:
                    self._given_up.wait(LAST_RETRY_S)
                retry = min(2 * retry, LONGEST_RETRY_S)
            else:
                retry = FIRST_RETRY_S
                self._report_recovery()
                self._wake.wait(POLL_S)

    def _deliver(self) -> None:
        if not self._started:
            self._sink.start(self._state, self._save_state)
            self._started = True
        while not self._given_up.is_set():
            if not self._rows:
                self._rows, self._rows_end = self._read()
            if not self._rows or self._given_up.is_set():
                return
            self._sink.write_rows(self._rows)
            self._rows, self._position = [], self._rows_end
            self._save_state()

    def _read(self) -> tuple[list[Row], int]:
        """Returns the next rows, and the file position after them."""
        rows: list[Row] = []
        position = self._position
        if not self._directory.metrics.exists():
            return rows, position
        with self._directory.metrics.open("rb") as file:
            file.seek(position)
            for line in file:
                if not line.endswith(b"\n") or len(rows) == BATCH_ROWS:
                    break
                values = json.loads(line)
                rows.append(Row(int(values.pop("step")), values, time.time()))
                position += len(line)
        return rows, position

    def _save_state(self) -> None:
        with self._saving:
            if self._sink.address and not self._given_up.is_set():  # after that another process may own the directory
                known = {"address": self._sink.address, "bytes": self._position, "memory": self._state}
                write_atomic(self._directory.delivered(self._sink.name), json.dumps(known).encode())

    def _report_error(self, error: Exception) -> None:
        first = not self._error
        self._error = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        if first and self._status is None:
            self._say(f"{self._sink.name}: {self._error}; the run continues, and missed rows are delivered later")

    def _report_recovery(self) -> None:
        if self._error:
            self._error = ""
            self._say(f"{self._sink.name}: reconnected, all missed rows delivered")

    def _remaining(self) -> str:
        """Describes what is not delivered yet."""
        lines = 0
        if self._directory.metrics.exists():
            with self._directory.metrics.open("rb") as file:
                file.seek(self._position)
                lines = sum(1 for _ in file)
        return f"{lines} lines of metrics and the end of the run were" if lines else "the end of the run was"

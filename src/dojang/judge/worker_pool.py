"""Runs work on a pool of worker processes: one thread per worker, and one queue.

Work waits in lanes, which are served round-robin: a lane with much work does not delay a lane with little.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from dojang.judge.worker_handle import WorkerFailed, WorkerHandle

__all__ = ["ATTEMPTS", "Work", "WorkerPool"]

ATTEMPTS = 3
"""Workers that may fail on the same work before it is given up."""


@dataclass(frozen=True, slots=True)
class Work:
    """One unit of work for a worker, and the result to return if no worker can do it."""

    lane: str
    do: Callable[[WorkerHandle], Any]
    give_up: Callable[[str], Any]
    done: "Future[Any]" = field(default_factory=Future)


class WorkerPool:
    """Up to `size` threads with a worker each, started on demand."""

    def __init__(self, size: int, start: Callable[[], WorkerHandle]) -> None:
        self._size = size
        self._start = start
        self._ready = threading.Condition()
        self._lanes: OrderedDict[str, deque[Work]] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._workers: set[WorkerHandle] = set()
        self._idle = 0
        self._closed = False

    def put(self, work: Work) -> None:
        with self._ready:
            if self._closed:
                work.done.set_result(work.give_up("the judge is closed"))
                return
            self._lanes.setdefault(work.lane, deque()).append(work)
            # A thread that was notified still counts as idle until it runs.
            waiting = sum(map(len, self._lanes.values()))
            if waiting > self._idle and len(self._threads) < self._size:
                thread = threading.Thread(target=self._serve, name=f"judge {len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._ready.notify()

    def close(self) -> None:
        """Give up queued work, interrupt running work, and wait until every worker has ended."""
        with self._ready:
            self._closed = True
            waiting = [work for lane in self._lanes.values() for work in lane]
            self._lanes.clear()
            for worker in self._workers:
                worker.disconnect()
            self._ready.notify_all()
        for work in waiting:
            if work.done.set_running_or_notify_cancel():
                work.done.set_result(work.give_up("the judge was closed"))
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        worker: WorkerHandle | None = None
        try:
            while (work := self._next()) is not None:
                if work.done.set_running_or_notify_cancel():
                    worker = self._run_with_retries(work, worker)
        finally:
            if worker is not None:
                self._stop_worker(worker)

    def _next(self) -> Work | None:
        """Return the next work, round-robin over lanes; None when the pool is closed."""
        with self._ready:
            self._idle += 1
            self._ready.wait_for(lambda: self._closed or bool(self._lanes))
            self._idle -= 1
            if self._closed:
                return None
            name, lane = self._lanes.popitem(last=False)
            work = lane.popleft()
            if lane:
                self._lanes[name] = lane  # back of the round-robin
            return work

    def _run_with_retries(self, work: Work, worker: WorkerHandle | None) -> WorkerHandle | None:
        """Run the work, on a new worker after each failure. Returns the worker if it can be used again."""
        reason = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                reason = "the judge was closed"
                break
            try:
                worker = worker or self._start_worker()
                result = work.do(worker)
            except Exception as error:  # any error must end the work: otherwise its caller would wait for ever
                if worker is not None:
                    self._stop_worker(worker)  # it may be in the middle of a message
                worker = None
                if not isinstance(error, WorkerFailed):
                    reason = f"{type(error).__name__}: {error}"
                    break
                reason = str(error)
                continue
            work.done.set_result(result)
            return worker
        work.done.set_result(work.give_up(reason))
        return worker

    def _start_worker(self) -> WorkerHandle:
        worker = self._start()
        with self._ready:
            self._workers.add(worker)
            closed = self._closed
        if closed:
            worker.disconnect()
        return worker

    def _stop_worker(self, worker: WorkerHandle) -> None:
        with self._ready:
            self._workers.discard(worker)
        worker.close()

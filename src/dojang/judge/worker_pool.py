"""Threads that each keep one worker busy, and the queue they are fed from.

Work waits in lanes, which are served in turn: whoever has much work waits longer than whoever has little.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from dojang.judge.worker_handle import Link, WorkerFailed

__all__ = ["ATTEMPTS", "Crew", "Work"]

ATTEMPTS = 3
"""Workers that may fail over the same work before it is given up."""


@dataclass(frozen=True, slots=True)
class Work:
    """Something to do with a worker, and what to answer if that cannot be done."""

    lane: str
    do: Callable[[Link], Any]
    give_up: Callable[[str], Any]
    done: "Future[Any]" = field(default_factory=Future)


class Crew:
    """Up to `size` threads, started as they are needed."""

    def __init__(self, size: int, start: Callable[[], Link]) -> None:
        self._size = size
        self._start = start
        self._ready = threading.Condition()
        self._lanes: OrderedDict[str, deque[Work]] = OrderedDict()
        self._threads: list[threading.Thread] = []
        self._links: set[Link] = set()
        self._idle = 0
        self._closed = False

    def put(self, work: Work) -> None:
        """Have the work done when its turn comes."""
        with self._ready:
            if self._closed:
                work.done.set_result(work.give_up("the judge is closed"))
                return
            self._lanes.setdefault(work.lane, deque()).append(work)
            # A thread that has been woken still counts as idle until it gets to run.
            waiting = sum(map(len, self._lanes.values()))
            if waiting > self._idle and len(self._threads) < self._size:
                thread = threading.Thread(target=self._serve, name=f"judge {len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._ready.notify()

    def close(self) -> None:
        """Give up what waits, interrupt what runs, and wait until every worker is gone."""
        with self._ready:
            self._closed = True
            waiting = [work for lane in self._lanes.values() for work in lane]
            self._lanes.clear()
            for link in self._links:
                link.hang_up()
            self._ready.notify_all()
        for work in waiting:
            if work.done.set_running_or_notify_cancel():
                work.done.set_result(work.give_up("the judge was closed"))
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        link: Link | None = None
        try:
            while (work := self._next()) is not None:
                if work.done.set_running_or_notify_cancel():
                    link = self._finish(work, link)
        finally:
            if link is not None:
                self._put_away(link)

    def _next(self) -> Work | None:
        """The first of the lane whose turn it is; None when the crew is closed."""
        with self._ready:
            self._idle += 1
            self._ready.wait_for(lambda: self._closed or bool(self._lanes))
            self._idle -= 1
            if self._closed:
                return None
            name, lane = self._lanes.popitem(last=False)
            work = lane.popleft()
            if lane:
                self._lanes[name] = lane  # to the end of the round
            return work

    def _finish(self, work: Work, link: Link | None) -> Link | None:
        """Do the work, on as many workers as it takes; returns the worker, if it is still good."""
        reason = ""
        for _ in range(ATTEMPTS):
            if self._closed:
                reason = "the judge was closed"
                break
            try:
                link = link or self._hire()
                result = work.do(link)
            except Exception as error:  # whatever it is: nobody must wait for ever because of a mistake here
                if link is not None:
                    self._put_away(link)  # it may be waiting for the rest of something
                link = None
                if not isinstance(error, WorkerFailed):
                    reason = f"{type(error).__name__}: {error}"
                    break
                reason = str(error)
                continue
            work.done.set_result(result)
            return link
        work.done.set_result(work.give_up(reason))
        return link

    def _hire(self) -> Link:
        link = self._start()
        with self._ready:
            self._links.add(link)
            closed = self._closed
        if closed:
            link.hang_up()
        return link

    def _put_away(self, link: Link) -> None:
        with self._ready:
            self._links.discard(link)
        link.close()

"""Rollout queue: hands prompts to rollout workers as leases, takes their groups, and gives batches to the trainer.

    worker:   lease ──► rollout ──► deliver          trainer:  next_batch ──► update ──► learn, publish

Runs on one event loop, over a ledger and, if given, a journal. It does not know where workers run. A lease that is not
renewed in time goes to another worker with the same prompt index, so with the same random stream. The first delivery
wins, also if its lease was lost. No worker holds more than its share of the prompts that may be in flight: those are
divided equally among the workers of the moment.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakValueDictionary

from dojang.loop.journal import Journal, JournalEntry
from dojang.loop.ledger import Ledger, token_versions
from dojang.types import Group, Metrics, Problem

__all__ = ["TRAINER", "Lease", "QueueClosed", "RolloutQueue"]

TRAINER = "trainer's process"
"""Name of the worker in the trainer's process."""


class QueueClosed(Exception):
    """No further batch will come: the queue is closed, or every batch of the run is learned."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Right and duty to sample the group of one prompt."""

    prompt_index: int
    attempt: int
    """How many leases of this prompt were lost before."""
    version: int
    """Lowest weight version that may sample a token. In overlap mode: the version that samples all of them."""


@dataclass(slots=True)
class _Held:
    worker: str
    expires: float
    """Time of the event loop."""
    since: float
    """time.monotonic, for other threads."""


class RolloutQueue:
    """Leases, deliveries and batches of an asynchronous run."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal | None = None,
        *,
        has_signal: Callable[[Group], bool],
        lease_s: float = math.inf,
        on_holders: Callable[[Collection[str]], None] = lambda workers: None,
    ) -> None:
        """`has_signal` tells whether the rewards of a group differ; `lease_s` is the time after which a lease that is
        not renewed is lost (workers in this process need no limit). `on_holders` is told which workers hold leases,
        whenever that changes."""
        self.ledger = ledger
        self._journal = journal
        self._has_signal = has_signal
        self._lease_s = lease_s
        self._leases: dict[int, _Held] = {}
        self._on_holders, self._holders = on_holders, set[str]()
        self._present: dict[str, float] = {}
        """Workers that have entered, and the time of their last sign of life."""
        self._asking: Counter[str] = Counter()
        """Workers that wait for a prompt."""
        self._delivering: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        """Locks of the prompts whose groups are being delivered."""
        self._unwritten: list[tuple[JournalEntry, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._closed = False
        self._failure: BaseException | None = None
        self._sampled_by: dict[int, str] = {}
        """Workers of the groups that are not learned yet; those of a checkpoint or journal are not known."""
        self._events: Counter[str] = Counter()
        self._waited_s = {"worker": 0.0, "trainer": 0.0}
        self._idle_s = 0.0
        self._idle_since: float | None = None

    async def lease(self, worker: str, limit_s: float, *, expires: bool = True) -> Lease | None:
        """Waits until a prompt may start; None when `limit_s` has passed, or at the end of the run. A worker in this
        process needs no lease that expires."""
        deadline = self._now() + limit_s
        with self._waiting("worker"), self._asks(worker):
            while not self.ended:
                self._raise_failure()
                self._expire()
                if self._has_share(worker) and (index := self.ledger.draw()) is not None:
                    kept_s = self._lease_s if expires else math.inf
                    self._leases[index] = _Held(worker, self._now() + kept_s, time.monotonic())
                    self._note_idle()
                    return Lease(index, self.ledger.attempt(index), self.ledger.oldest_version(index))
                if (left := deadline - self._now()) <= 0:
                    return None
                await self._change(min(left, self._until_expiry()))
        return None

    def enter(self, worker: str) -> None:
        """Announces a worker that will lease prompts: they are divided among more workers from now on."""
        self._present[worker] = self._now()

    def heartbeat(self, worker: str, prompts: Collection[int] | None = None) -> None:
        """Renews a worker's leases: those of `prompts`, or all. A worker that names its prompts loses the others in
        time: leases whose answer never reached it."""
        self.enter(worker)
        for index, held in self._leases.items():
            if held.worker == worker and (prompts is None or index in prompts):
                held.expires = self._now() + self._lease_s

    def leave(self, worker: str) -> None:
        """Returns all prompts that a worker holds. The others share what it had."""
        self._present.pop(worker, None)
        self._notify()
        for index in [index for index, held in self._leases.items() if held.worker == worker]:
            self._give_back(index, "returned")

    async def deliver(
        self, worker: str, prompt_index: int, attempt: int, group: Group
    ) -> Literal["taken", "known", "late"]:
        """Takes a group; it is on disk before the answer is "taken". "known": another delivery came first. "late": its
        tokens are of versions that are too old, or that this run has not published; the prompt is leased again."""
        if group.prompt_index != prompt_index:
            raise ValueError(f"group {group.prompt_index} was delivered as group {prompt_index}")
        # One at a time for each prompt: two deliveries must not both be written.
        async with self._delivering.setdefault(prompt_index, asyncio.Lock()):
            answer = await self._take(worker, prompt_index, attempt, group)
        self._events[answer] += 1
        self._notify()
        return answer

    async def _take(self, worker: str, index: int, attempt: int, group: Group) -> Literal["taken", "known", "late"]:
        state = self.ledger.state(index)
        if state not in ("undrawn", "drawn"):
            return "known"
        if state == "undrawn" or not self._fits(group):
            if (held := self._leases.get(index)) and (held.worker, self.ledger.attempt(index)) == (worker, attempt):
                self._give_back(index, "returned")
            return "late"
        has_signal = self._has_signal(group)
        if self._journal is not None:
            try:
                await self._write(JournalEntry(group, attempt))
            except Exception as error:
                self.fail(error)  # the trainer must know of a full disk, not the worker alone
                raise
        self._leases.pop(index, None)
        self._note_idle()
        self._sampled_by[index] = worker
        return self.ledger.deliver(index, group, has_signal)

    async def _write(self, entry: JournalEntry) -> None:
        """Writes a group to the journal; groups that come while others are written are flushed to disk together."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unwritten.append((entry, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all())
        await written

    async def _write_all(self) -> None:
        assert self._journal is not None
        while self._unwritten:
            batch, self._unwritten = self._unwritten, []
            error: Exception | None = None
            try:
                await asyncio.to_thread(self._journal.append_all, [entry for entry, _ in batch])
            except Exception as failed:
                error = failed
            for _, written in batch:
                if written.done():  # its delivery was cancelled
                    continue
                if error is None:
                    written.set_result(None)
                else:
                    written.set_exception(error)

    def publish(self, version: int) -> None:
        """Records a published version: more prompts may start."""
        self.ledger.publish(version)
        self._notify()

    async def wait_version(self, known: int, limit_s: float) -> int:
        """Waits until another version than `known` is published, the queue is closed, or `limit_s` has passed. Returns
        the newest version."""
        deadline = self._now() + limit_s
        while self.ledger.version == known and not self.ended and (left := deadline - self._now()) > 0:
            await self._change(left)
        return self.ledger.version

    @property
    def taken(self) -> int:
        """Number of groups taken from workers."""
        return self._events["taken"]

    @property
    def ended(self) -> bool:
        """Whether no further prompt will be leased."""
        return self._closed or self.ledger.finished

    async def next_batch(self) -> list[Group]:
        """Waits for the groups of the next batch. QueueClosed if none will come."""
        with self._waiting("trainer"):
            while True:
                self._raise_failure()
                if (batch := self.ledger.next_batch()) is not None:
                    return batch
                if self._closed or self.ledger.finished:
                    raise QueueClosed("the queue is closed" if self._closed else "every batch is learned")
                await self._change(math.inf)

    def learn(self, step: int) -> None:
        """Records that batch `step` was trained on."""
        self.ledger.learn(step)
        end = self.ledger.batch_end
        self._sampled_by = {index: worker for index, worker in self._sampled_by.items() if index >= end}

    def recover(self, problem: Callable[[int], Problem]) -> dict[str, int]:
        """Takes the groups of the journal that fit the restored weights, and drops the others: their prompts are
        sampled again. To be called before anything is leased. Returns how many were "taken" and "dropped"."""
        if self._journal is None:
            return {"taken": 0, "dropped": 0}
        taken, dropped = set[int](), 0
        for entry in self._journal.replay(problem):
            index = entry.group.prompt_index
            if self.ledger.state(index) in ("ready", "void", "learned"):
                continue  # part of the checkpoint, or written twice
            if self._fits(entry.group) and self.ledger.claim(index):
                self.ledger.deliver(index, entry.group, self._has_signal(entry.group))
                taken.add(index)
            else:
                dropped += 1
        # Dropped groups must not stay: later their version numbers would be those of other weights.
        self._journal.rewrite(taken.__contains__)
        return {"taken": len(taken), "dropped": dropped + self._journal.unreadable}

    async def trim_journal(self, snapshot: Mapping[str, Any]) -> None:
        """Drops the groups from the journal that a saved checkpoint holds, given its ledger's snapshot."""
        held = {*snapshot["ready"], *snapshot["void"]}
        if self._journal is not None:
            await asyncio.to_thread(
                self._journal.rewrite, lambda index: index >= snapshot["first"] and index not in held
            )

    def fail(self, error: BaseException) -> None:
        """Ends all waits with this error, such as that of a workflow."""
        self._failure = self._failure or error
        self._notify()

    def close(self) -> None:
        """Ends all waits."""
        self._closed = True
        self._notify()

    def waits_for(self) -> dict[int, str]:
        """Prompts that the next batch lacks, with the worker that holds each; "" if no worker does."""
        return {index: held.worker if (held := self._leases.get(index)) else "" for index in self.ledger.missing()}

    @property
    def delivered(self) -> int:
        """Number of groups that were taken."""
        return self._events["taken"]

    def describe(self) -> str:
        """Says which groups the next batch lacks, and which workers hold them; from any thread."""
        missing, now = self.ledger.missing(), time.monotonic()
        held = [(index, lease) for index in missing if (lease := self._leases.get(index)) and lease.expires > now]
        parts = []
        for worker in dict.fromkeys(lease.worker for _, lease in held):
            own = [(lease.since, index) for index, lease in held if lease.worker == worker]
            since, oldest = min(own)
            parts.append(f"{len(own)} held by {worker}, the oldest (prompt {oldest}) for {now - since:.0f} s")
        if waiting := len(missing) - len(held):
            parts.append(f"{waiting} without a worker")
        lacks = f"batch {self.ledger.step} lacks {len(missing)} of {self.ledger.prompts_per_step} groups"
        return f"{lacks}: {', '.join(parts)}" if missing else ""

    @property
    def idle_s(self) -> float:
        """Seconds since the first lease in which no worker held one."""
        return self._idle_s + (0.0 if self._idle_since is None else self._now() - self._idle_since)

    def metrics(self) -> Metrics:
        """Prompts by state, leases, deliveries by answer, lost leases, seconds that workers (added up) and the trainer
        have waited, and who sampled the batch that was handed out."""
        end = self.ledger.batch_end
        workers = [worker for index, worker in self._sampled_by.items() if index < end]
        return {
            **{f"rollout_queue/{name}": float(count) for name, count in self.ledger.counts().items()},
            "rollout_queue/leases": float(len(self._leases)),
            **{f"rollout_queue/{name}": float(self._events[name]) for name in ("known", "late", "expired", "returned")},
            **{f"rollout_queue/{name}_wait_s": seconds for name, seconds in self._waited_s.items()},
            "rollout_queue/batch_workers": float(len(set(workers))),
            "rollout_queue/sampled_here": float(workers.count(TRAINER)),
        }

    def _fits(self, group: Group) -> bool:
        """Whether the versions of a group's tokens are young enough, and published."""
        versions = token_versions(group)
        if versions is None:
            return True
        return self.ledger.oldest_version(group.prompt_index) <= versions[0] and versions[1] <= self.ledger.version

    def _has_share(self, worker: str) -> bool:
        """Whether a worker holds less than its share of the prompts that may be in flight."""
        since = self._now() - self._lease_s
        held = Counter(lease.worker for lease in self._leases.values())
        present = (name for name, seen in self._present.items() if seen >= since)
        workers = {worker, *held, *self._asking, *present}
        return len(workers) == 1 or held[worker] < -(-self.ledger.capacity // len(workers))

    def _expire(self) -> None:
        for index in [index for index, held in self._leases.items() if held.expires <= self._now()]:
            self._give_back(index, "expired")

    def _until_expiry(self) -> float:
        """Seconds until the next lease expires."""
        return min((held.expires - self._now() for held in self._leases.values()), default=math.inf)

    def _give_back(self, index: int, event: str) -> None:
        del self._leases[index]
        self._note_idle()
        self.ledger.give_back(index)
        self._events[event] += 1
        self._notify()

    def _note_idle(self) -> None:
        if self._holders != (holders := {held.worker for held in self._leases.values()}):
            self._holders = holders
            self._on_holders(holders)
        if self._leases:
            self._idle_s, self._idle_since = self.idle_s, None
        elif self._idle_since is None:
            self._idle_since = self._now()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, limit_s: float) -> None:
        """Waits for the next change, at most this long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if limit_s == math.inf else limit_s):
                await self._changed.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def _asks(self, worker: str) -> Iterator[None]:
        self._asking[worker] += 1
        try:
            yield
        finally:
            self._asking[worker] -= 1
            self._asking = +self._asking  # without zeros

    @contextmanager
    def _waiting(self, name: str) -> Iterator[None]:
        started = self._now()
        try:
            yield
        finally:
            self._waited_s[name] += self._now() - started

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

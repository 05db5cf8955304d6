"""The rollout queue with many workers, in virtual time: lost, slow and late ones, and kills of the whole process."""

import asyncio
import json
import math
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dojang.core.errors import RunDirError
from dojang.loop.journal import Journal, JournalEntry
from dojang.loop.ledger import Ledger, token_versions
from dojang.loop.rollout_queue import TRAINER, Lease, QueueClosed, RolloutQueue
from dojang.types import Group
from synchronous_batches import PROBLEM, group, synchronous_batches


class VirtualTime(selectors.DefaultSelector):
    """Passes the time at once when the loop has nothing to do. Threads, which take real time, are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.threads = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(timeout if timeout is None else None if timeout > 0 and self.threads else 0)
        if not found and timeout:
            self.now += timeout
        return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> "Run":
    """Runs in virtual time."""
    to_thread = asyncio.to_thread

    def play(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        selector = VirtualTime()

        async def counted(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            selector.threads += 1
            task = asyncio.ensure_future(to_thread(function, *arguments, **options))
            try:
                return await asyncio.shield(task)
            finally:
                await task  # a write that a kill interrupts is complete, but was not acknowledged
                selector.threads -= 1

        loop = asyncio.SelectorEventLoop(selector)
        with monkeypatch.context() as patch, asyncio.Runner(loop_factory=lambda: loop) as runner:
            patch.setattr(asyncio, "to_thread", counted)
            patch.setattr(loop, "time", lambda: selector.now)
            return runner.run(work())

    return play


Run = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


def queue_of(
    size: int, lag: int, *, lease_s: float = math.inf, journal: Journal | None = None, **more: int
) -> RolloutQueue:
    return RolloutQueue(Ledger(size, lag, **more), journal, has_signal=lambda group: True, lease_s=lease_s)


async def leased(queue: RolloutQueue, worker: str, limit_s: float = 0) -> Lease:
    found = await queue.lease(worker, limit_s)
    assert found is not None
    return found


class Cluster:
    """Workers that come, go, stop answering and deliver twice; a trainer; a process that is killed and resumed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.size, self.lag = self.random.randint(1, 4), self.random.choice((0, 1, 3))
        self.rounds, self.steps = self.random.choice((0, 2)), self.random.randint(2, 6)
        self.signals = [self.random.random() < 0.6 for _ in range(self.steps * self.size * (1 + self.rounds))]
        self.settings = {
            "prompts_per_step": self.size,
            "lag": self.lag,
            "resample_rounds": self.rounds,
            "steps": self.steps,
        }
        self.journal = folder / f"{seed}.journal"
        self.learned: list[list[int]] = []
        self.saved: tuple[str, list[Group]] | None = None
        self.recovered = {"taken": 0, "dropped": 0}
        self.workers = 0

    def open(self) -> RolloutQueue:
        """A new process: the last checkpoint, and what the journal has beyond it."""
        if self.saved is None:
            ledger = Ledger(**self.settings)
        else:
            ledger = Ledger.restore(json.loads(self.saved[0]), self.saved[1], **self.settings)
        del self.learned[ledger.step :]
        queue = RolloutQueue(
            ledger,
            Journal(self.journal),
            has_signal=lambda group: self.signals[group.prompt_index],
            lease_s=20,
        )
        for name, count in queue.recover(lambda _: PROBLEM).items():
            self.recovered[name] += count
        return queue

    async def work(self, queue: RolloutQueue) -> None:
        """One worker, until it is lost."""
        self.workers += 1
        name, random = f"worker {self.workers}", Random(self.random.random())
        while (lease := await queue.lease(name, 100)) is not None:
            first = random.randint(lease.version, queue.ledger.version)
            await asyncio.sleep(random.choice((0.1, 1, 5)))
            fate = random.random()
            if fate < 0.1:
                queue.leave(name)
            elif fate < 0.2:
                return  # without a word: its lease expires
            elif fate < 0.3:
                await asyncio.sleep(30)  # delivers when its lease has expired
            arrived = group(lease.prompt_index, first, random.randint(first, queue.ledger.version))
            answers = [await queue.deliver(name, lease.prompt_index, lease.attempt, arrived)]
            if fate > 0.9:
                answers.append(await queue.deliver(name, lease.prompt_index, lease.attempt, arrived))
                assert answers[1] == "known"
            assert answers[0] in ("taken", "known")

    async def hire(self, queue: RolloutQueue) -> None:
        """Replaces workers that are lost."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(self.replace(queue))

    async def replace(self, queue: RolloutQueue) -> None:
        while not queue.ledger.finished:
            await self.work(queue)
            await asyncio.sleep(0.1)

    async def train(self, queue: RolloutQueue) -> None:
        for step in range(queue.ledger.step, self.steps):
            batch = await queue.next_batch()
            await asyncio.sleep(self.random.choice((0.1, 3, 10)))
            for each in batch:
                versions = token_versions(each)
                assert versions is None or step - versions[0] <= self.lag
            self.learned.append([each.prompt_index for each in batch])
            queue.learn(step)
            queue.publish(step + 1)
            if self.random.random() < 0.3:
                snapshot = queue.ledger.snapshot()
                self.saved = json.dumps(snapshot), queue.ledger.ready_groups()
                if self.random.random() < 0.8:  # else: killed before
                    await queue.trim_journal(snapshot)

    async def life(self, limit_s: float) -> None:
        """Runs a process until the run ends, or until it is killed after this time."""
        queue = self.open()
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s), asyncio.TaskGroup() as tasks:
                tasks.create_task(self.train(queue))
                tasks.create_task(self.hire(queue))

    async def live(self) -> None:
        for _ in range(4):
            if len(self.learned) < self.steps:
                await self.life(self.random.choice((5, 20, 60)))
        if len(self.learned) < self.steps:
            await self.life(10_000)


def test_killed_clusters_learn_the_batches_of_the_synchronous_loop(run: Run, tmp_path: Path) -> None:
    recovered = 0
    for seed in range(25):
        cluster = Cluster(seed, tmp_path)
        run(cluster.live)
        expected = synchronous_batches(cluster.size, cluster.rounds, cluster.steps, cluster.signals.__getitem__)
        assert cluster.learned == expected, f"seed {seed}"
        recovered += cluster.recovered["taken"]
    assert recovered > 20


def test_a_lease_waits_until_its_prompt_may_start(run: Run) -> None:
    async def work() -> tuple[object, ...]:
        queue = queue_of(1, 0)
        first = await queue.lease("a", 0)
        assert await queue.lease("b", 5) is None
        second = asyncio.create_task(queue.lease("b", 50))
        await queue.deliver("a", 0, 0, group(0, 0))
        assert await queue.next_batch() == [group(0, 0)]
        queue.learn(0)
        await asyncio.sleep(3)
        assert not second.done()
        queue.publish(1)
        return first, await second, queue.metrics()["rollout_queue/worker_wait_s"]

    assert run(work) == (Lease(0, 0, 0), Lease(1, 0, 1), 8.0)


def test_metrics_say_which_workers_sampled_the_batch(run: Run) -> None:
    async def work() -> list[tuple[float, ...]]:
        queue, found = queue_of(3, 1), []
        for index, worker in enumerate(["a", TRAINER, "b", "a", "a", "a"]):
            lease = await leased(queue, worker)
            assert await queue.deliver(worker, lease.prompt_index, 0, group(index, 0)) == "taken"
            assert await queue.deliver("late", lease.prompt_index, 0, group(index, 0)) == "known"
        for step in range(2):
            await queue.next_batch()
            found.append(tuple(queue.metrics()[f"rollout_queue/{name}"] for name in ("batch_workers", "sampled_here")))
            queue.learn(step)
        return found

    assert run(work) == [(3, 1), (1, 0)]


def test_the_version_of_a_lease_is_the_oldest_that_the_lag_allows(run: Run) -> None:
    """It is the version that samples the whole batch in overlap mode."""

    async def work() -> list[int]:
        queue, versions = queue_of(1, 2), []
        for step in range(5):
            while (lease := await queue.lease("a", 0)) is not None:
                versions.append(lease.version)
                await queue.deliver("a", lease.prompt_index, 0, group(lease.prompt_index, lease.version))
            await queue.next_batch()
            queue.learn(step)
            queue.publish(step + 1)
        return versions

    assert run(work) == [0, 0, 0, 1, 2, 3, 4]


def test_a_lost_lease_goes_to_another_worker(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(2, 0, lease_s=10)
        await leased(queue, "a")
        await leased(queue, "a")
        assert queue.waits_for() == {0: "a", 1: "a"}
        await asyncio.sleep(8)
        queue.heartbeat("a", [1])
        assert await queue.lease("b", 100) == Lease(0, 1, 0)
        assert asyncio.get_running_loop().time() == 10
        assert queue.waits_for() == {0: "b", 1: "a"}
        assert await queue.lease("c", 100) == Lease(1, 1, 0)
        assert asyncio.get_running_loop().time() == 18
        queue.heartbeat("b")
        assert await queue.lease("a", 5) is None
        assert queue.metrics()["rollout_queue/expired"] == 2

    run(work)


def test_the_prompts_of_a_worker_that_leaves_are_leased_at_once(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(2, 0)
        await leased(queue, "a")
        await leased(queue, "b")
        waiting = asyncio.create_task(queue.lease("c", 100))
        await asyncio.sleep(1)
        queue.leave("a")
        assert await waiting == Lease(0, 1, 0)
        assert asyncio.get_running_loop().time() == 1
        assert queue.waits_for() == {0: "c", 1: "b"}

    run(work)


def test_prompts_are_divided_among_the_workers_of_the_moment(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(4, 1, lease_s=20)  # eight prompts may be in flight
        queue.publish(0)
        mine = [await leased(queue, "a") for _ in range(5)]  # it is alone
        queue.enter("b")
        assert await queue.lease("a", 1) is None
        assert [(await leased(queue, "b")).prompt_index for _ in range(3)] == [5, 6, 7]
        await queue.deliver("a", 0, mine[0].attempt, group(0, 0, 0))
        await queue.deliver("a", 1, mine[1].attempt, group(1, 0, 0))
        assert await queue.lease("c", 0) is None  # nothing may start
        queue.leave("b")
        assert [(await leased(queue, "a")).prompt_index for _ in range(3)] == [5, 6, 7]

    run(work)


def test_a_worker_without_a_sign_of_life_has_no_share(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(1, 1, lease_s=20)
        queue.publish(0)
        queue.enter("b")
        await leased(queue, "a")
        assert await queue.lease("a", 15) is None
        queue.heartbeat("a")
        queue.heartbeat("b")
        assert await queue.lease("a", 15) is None
        queue.heartbeat("a")
        assert (await leased(queue, "a", 10)).prompt_index == 1

    run(work)


def test_a_worker_that_asks_has_a_share_before_it_holds_a_prompt(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(2, 1)
        mine = [await leased(queue, "a") for _ in range(4)]
        asking = [asyncio.create_task(queue.lease("b", 100)) for _ in range(2)]
        await asyncio.sleep(0)
        for index in (0, 1):
            await queue.deliver("a", index, mine[index].attempt, group(index, 0, 0))
        await queue.next_batch()
        queue.learn(0)
        queue.publish(1)  # two more may start, at once
        assert await queue.lease("a", 0) is None
        assert [lease.prompt_index for each in asking if (lease := await each)] == [4, 5]

    run(work)


def test_the_first_delivery_wins_also_of_a_lost_lease(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(1, 0, lease_s=1)
        await leased(queue, "a")
        await leased(queue, "b", 2)
        assert await queue.deliver("a", 0, 0, group(0, 0)) == "taken"
        assert await queue.deliver("b", 0, 1, group(0, 0, 0)) == "known"
        assert await queue.next_batch() == [group(0, 0)]
        queue.learn(0)
        assert await queue.deliver("b", 0, 1, group(0, 0, 0)) == "known"

    run(work)


def test_a_lost_prompt_that_is_delivered_is_not_leased_again(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(1, 0)
        await leased(queue, "a")
        queue.leave("a")
        assert await queue.deliver("a", 0, 0, group(0, 0)) == "taken"
        assert await queue.lease("b", 1) is None

    run(work)


@pytest.mark.parametrize("versions", [(0,), (1, 0), (2,), (1, 2)])
def test_groups_of_wrong_versions_are_late_and_their_prompt_is_leased_again(
    run: Run, versions: tuple[int, ...]
) -> None:
    """Older than the lag allows, or of weights that this run has not published."""

    async def work() -> None:
        queue = queue_of(1, 0)
        await leased(queue, "a")
        await queue.deliver("a", 0, 0, group(0, 0))
        await queue.next_batch()
        queue.learn(0)
        queue.publish(1)
        assert await queue.lease("a", 0) == Lease(1, 0, 1)
        assert await queue.deliver("a", 1, 0, group(1, *versions)) == "late"
        assert await queue.lease("b", 0) == Lease(1, 1, 1)
        assert await queue.deliver("a", 1, 0, group(1, *versions)) == "late"
        assert queue.waits_for() == {1: "b"}  # a late group of one worker does not end the lease of another
        queue.leave("b")
        assert await queue.lease("a", 0) == Lease(1, 2, 1)
        assert await queue.deliver("a", 1, 0, group(1, *versions)) == "late"
        assert queue.waits_for() == {1: "a"}  # nor its own newer lease
        assert await queue.deliver("a", 1, 2, group(1, 1)) == "taken"
        assert await queue.deliver("b", 7, 0, group(7, 1)) == "late"  # leased before the run went back to a checkpoint

    run(work)


def test_a_delivery_under_another_index_is_refused(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(1, 0)
        await leased(queue, "a")
        with pytest.raises(ValueError, match="group 1 was delivered as group 0"):
            await queue.deliver("a", 0, 0, group(1, 0))

    run(work)


def test_two_deliveries_at_once_are_written_once(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        journal = Journal(tmp_path / "journal")
        queue = queue_of(1, 0, journal=journal)
        await leased(queue, "a")
        answers = await asyncio.gather(*(queue.deliver("a", 0, 0, group(0, 0)) for _ in range(5)))
        assert sorted(answers) == ["known"] * 4 + ["taken"]
        assert len(list(journal.replay(lambda _: PROBLEM))) == 1

    run(work)


def test_groups_that_come_together_are_flushed_together(run: Run, tmp_path: Path) -> None:
    class Counted(Journal):
        sizes: list[int] = []  # noqa: RUF012  # of the groups flushed together

        def append_all(self, entries: Iterable[JournalEntry]) -> None:
            entries = list(entries)
            self.sizes.append(len(entries))
            super().append_all(entries)

    async def work() -> None:
        journal = Counted(tmp_path / "journal")
        queue = queue_of(9, 0, journal=journal)
        for _ in range(9):
            await leased(queue, "a")
        answers = await asyncio.gather(*(queue.deliver("a", index, 0, group(index, 0)) for index in range(9)))
        assert answers == ["taken"] * 9
        assert sum(journal.sizes) == 9
        assert len(journal.sizes) <= 2
        assert sorted(each.group.prompt_index for each in journal.replay(lambda _: PROBLEM)) == list(range(9))

    run(work)


def test_a_full_disk_ends_the_waits_of_trainer_and_workers(run: Run, tmp_path: Path) -> None:
    class Full(Journal):
        def append_all(self, entries: Iterable[JournalEntry]) -> None:
            raise RunDirError("the disk is full")

    async def ends(waiting: Awaitable[object]) -> None:
        with pytest.raises(RunDirError, match="the disk is full"):
            await waiting

    async def work() -> None:
        queue = queue_of(1, 0, journal=Full(tmp_path / "journal"))
        await leased(queue, "a")
        waits = [asyncio.create_task(ends(each)) for each in (queue.lease("b", 100), queue.next_batch())]
        await asyncio.sleep(1)
        await ends(queue.deliver("a", 0, 0, group(0, 0)))
        await asyncio.gather(*waits)
        assert queue.ledger.state(0) == "drawn"

    run(work)


def test_closing_ends_all_waits(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(1, 0)
        await leased(queue, "a")
        lease, batch = asyncio.create_task(queue.lease("b", math.inf)), asyncio.create_task(queue.next_batch())
        await asyncio.sleep(1)
        queue.close()
        assert await lease is None
        with pytest.raises(QueueClosed, match="the queue is closed"):
            await batch
        assert await queue.deliver("a", 0, 0, group(0, 0)) == "taken"  # a worker that drains

    run(work)


def test_the_end_of_the_run_ends_all_waits(run: Run) -> None:
    async def work() -> None:
        queue = queue_of(1, 1, steps=1)
        await leased(queue, "a")
        waiting = asyncio.create_task(queue.lease("b", math.inf))
        await asyncio.sleep(1)
        assert not waiting.done()  # the lease of the other may be lost yet
        await queue.deliver("a", 0, 0, group(0, 0))
        assert await waiting is None
        assert len(await queue.next_batch()) == 1
        queue.learn(0)
        with pytest.raises(QueueClosed, match="every batch is learned"):
            await queue.next_batch()

    run(work)


def test_groups_newer_than_the_restored_weights_are_dropped_and_counted(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        journal = Journal(tmp_path / "journal")
        for index, version in ((2, 0), (3, 1), (4, 1), (2, 0), (9, 0)):
            journal.append(group(index, version), attempt=0)
        queue = queue_of(2, 1, journal=journal)
        assert queue.recover(lambda _: PROBLEM) == {"taken": 1, "dropped": 3}
        assert [each.group.prompt_index for each in journal.replay(lambda _: PROBLEM)] == [2, 2]
        assert [(await leased(queue, "a")).prompt_index for _ in range(3)] == [0, 1, 3]
        assert await queue.lease("a", 0) is None

    run(work)


def test_a_checkpoint_trims_the_journal(run: Run, tmp_path: Path) -> None:
    async def work() -> None:
        journal = Journal(tmp_path / "journal")
        queue = queue_of(2, 1, journal=journal)
        for _ in range(4):
            await leased(queue, "a")
        for index in (0, 1, 3):
            await queue.deliver("a", index, 0, group(index, 0))
        await queue.next_batch()
        queue.learn(0)
        snapshot = queue.ledger.snapshot()
        await queue.deliver("a", 2, 0, group(2, 0))  # while the checkpoint is written
        await queue.trim_journal(snapshot)
        assert [each.group.prompt_index for each in journal.replay(lambda _: PROBLEM)] == [2]

    run(work)

"""The ledger under random schedules, beside the synchronous loop's definition of a batch."""

import json
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from dojang.loop.ledger import Ledger, token_versions
from dojang.types import Group, Sample, Span
from synchronous_batches import PROBLEM, group, synchronous_batches


class Schedule:
    """Draws, samples, loses workers, trains and is killed at random. `learned` is what the surviving weights saw."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.size, self.lag = self.random.randint(1, 5), self.random.choice((0, 1, 2, 4))
        self.rounds, self.steps = self.random.choice((0, 0, 1, 3)), self.random.randint(1, 12)
        share = self.random.choice((0.2, 0.6, 0.95))
        most = self.steps * self.size * (1 + self.rounds)
        self.skipped = {index for index in range(2 * most) if self.random.random() < self.random.choice((0, 0.5))}
        self.signals = [self.random.random() < share for _ in range(3 * most)]
        self.settings: dict[str, Any] = {
            "prompts_per_step": self.size,
            "lag": self.lag,
            "resample_rounds": self.rounds,
            "steps": self.steps,
            "skips": self.skipped.__contains__,
        }
        self.ledger = Ledger(**self.settings)
        self.in_flight: dict[int, int] = {}
        """Version with which each prompt was started."""
        self.lost: list[int] = []
        """Prompts whose worker is believed lost, but may deliver yet."""
        self.learned: list[list[int]] = []
        self.saved = self.checkpoint()

    def checkpoint(self) -> tuple[str, list[Group]]:
        return json.dumps(self.ledger.snapshot()), self.ledger.ready_groups()

    def draw(self) -> None:
        index = self.ledger.draw()
        if index is None:
            return
        assert index not in self.in_flight
        assert 0 <= self.ledger.oldest_version(index) <= self.ledger.version
        self.in_flight[index] = self.random.randint(self.ledger.oldest_version(index), self.ledger.version)

    def sampled(self, index: int, started: int) -> Group:
        newer = self.random.randint(started, self.ledger.version)
        return group(index, started, newer) if self.random.random() < 0.95 or self.signals[index] else group(index)

    def deliver(self) -> None:
        if not self.in_flight:
            return
        index = self.random.choice(list(self.in_flight))
        arrived = self.sampled(index, self.in_flight.pop(index))
        assert self.ledger.deliver(index, arrived, self.signals[index]) == "taken"
        if self.random.random() < 0.3:
            assert self.ledger.deliver(index, arrived, self.random.random() < 0.5) == "known"

    def lose(self) -> None:
        if not self.in_flight:
            return
        index = self.random.choice(list(self.in_flight))
        before = self.ledger.attempt(index)
        self.ledger.give_back(index)
        assert self.ledger.attempt(index) == before + 1
        del self.in_flight[index]
        self.lost.append(index)

    def deliver_lost(self) -> None:
        """A worker that was believed lost delivers after all."""
        if not self.lost:
            return
        index = self.lost.pop(self.random.randrange(len(self.lost)))
        if self.ledger.state(index) == "drawn":
            arrived = group(index, self.ledger.oldest_version(index))
            assert self.ledger.deliver(index, arrived, self.signals[index]) == "taken"
            self.in_flight.pop(index, None)
        else:
            assert self.ledger.deliver(index, group(index, 0), self.signals[index]) == "known"

    def train(self) -> None:
        batch = self.ledger.next_batch()
        if batch is None:
            return
        step = len(self.learned)
        assert self.ledger.next_batch() == batch
        if early := self.random.random() < 0.5:
            self.ledger.publish(step + 1)
        self.ledger.learn(step)
        if not early and self.random.random() < 0.7:  # otherwise the next version is published with a later one
            self.ledger.publish(step + 1)
        for each in batch:
            if versions := token_versions(each):
                assert step - versions[0] <= self.lag
        self.learned.append([each.prompt_index for each in batch])

    def save(self) -> None:
        self.saved = self.checkpoint()

    def kill(self) -> None:
        """Everything but the last checkpoint is gone."""
        snapshot, groups = self.saved
        self.random.shuffle(groups)
        self.ledger = Ledger.restore(json.loads(snapshot), groups, **self.settings)
        assert self.ledger.counts()["refused"] == 0
        assert self.checkpoint() == (snapshot, sorted(groups, key=lambda each: each.prompt_index))
        self.in_flight.clear()
        self.lost.clear()
        del self.learned[self.ledger.step :]

    def play(self) -> None:
        moves = [self.draw] * 8 + [self.deliver] * 8 + [self.train] * 4 + [self.lose, self.deliver_lost] * 2
        moves += [self.save] * 2
        kills = 6
        for _ in range(100_000):
            if len(self.learned) == self.steps:
                return
            if kills and self.random.random() < 0.01:
                kills -= 1
                self.kill()
            self.random.choice(moves)()
            if self.ledger.step > self.ledger.version and self.random.random() < 0.1:
                self.ledger.publish(self.ledger.step)
        raise AssertionError("the run does not end")


@pytest.mark.parametrize("part", range(10))
def test_random_schedules_learn_the_batches_of_the_synchronous_loop(part: int) -> None:
    for seed in range(part * 30, part * 30 + 30):
        schedule = Schedule(seed)
        schedule.play()
        ledger = schedule.ledger
        expected = synchronous_batches(
            schedule.size, schedule.rounds, schedule.steps, schedule.signals.__getitem__, schedule.skipped
        )
        assert schedule.learned == expected, f"seed {seed}"
        assert ledger.largest_staleness <= schedule.lag
        assert ledger.finished
        assert ledger.draw() is None
        assert ledger.next_batch() is None
        counts = ledger.counts()
        assert (counts["drawn"], counts["ready"]) == (0, 0)
        assert counts["learned"] == sum(map(len, expected))
        assert [ledger._ready, ledger._void, ledger._returned, ledger._attempts] == [{}, [], [], {}]
        assert ledger._skipped == [index for index in ledger._skipped if index >= ledger.batch_end]


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_every_prompt_may_start_that_the_lag_allows_and_no_other(lag: int) -> None:
    """The bound is tight: as many batches start at once as the lag allows, and the last of them is as old as that."""
    ledger = Ledger(4, lag)
    started: dict[int, int] = {}
    for step in range(6):
        while (index := ledger.draw()) is not None:
            started[index] = ledger.version
        assert sorted(started) == list(range((step + lag + 1) * 4))
        for index in range(step * 4, step * 4 + 4):
            ledger.deliver(index, group(index, started[index]), True)
        assert ledger.next_batch()
        ledger.learn(step)
        ledger.publish(step + 1)
        assert ledger.largest_staleness == min(step, lag)


def test_a_batch_waits_for_the_slowest_group_and_not_for_later_ones() -> None:
    ledger = Ledger(2, 1)
    assert [ledger.draw() for _ in range(5)] == [0, 1, 2, 3, None]
    for index in (3, 2, 1):
        ledger.deliver(index, group(index, 0), True)
        assert ledger.next_batch() is None
    ledger.deliver(0, group(0, 0), True)
    assert [each.prompt_index for each in ledger.next_batch() or []] == [0, 1]


def test_a_group_without_signal_is_replaced_while_rounds_last() -> None:
    ledger = Ledger(2, 0, resample_rounds=1)
    assert [ledger.draw() for _ in range(3)] == [0, 1, None]
    ledger.deliver(0, group(0, 0), False)
    ledger.deliver(1, group(1), True)  # nothing was judged
    assert ledger.next_batch() is None
    assert [ledger.draw() for _ in range(3)] == [2, 3, None]
    ledger.deliver(2, group(2, 0), False)
    ledger.deliver(3, group(3, 0), True)
    assert [each.prompt_index for each in ledger.next_batch() or []] == [3]
    assert ledger.draw() is None  # the batch is short, but the next one still waits for its version
    ledger.learn(0)
    ledger.publish(1)
    assert [ledger.draw() for _ in range(3)] == [4, 5, None]
    counts = ledger.counts()
    assert counts == {
        "drawn": 2,
        "ready": 0,
        "learned": 1,
        "refused": 0,
        "void": 3,
        "void/no signal": 2,
        "void/no verdict": 1,
    }


def test_an_empty_batch_is_a_batch() -> None:
    ledger = Ledger(1, 0, resample_rounds=2, steps=1)
    for index in range(3):
        assert ledger.draw() == index
        assert ledger.next_batch() is None
        ledger.deliver(index, group(index, 0), False)
    assert ledger.next_batch() == []
    ledger.learn(0)
    assert ledger.finished


def test_without_resampling_groups_without_signal_or_samples_stay() -> None:
    ledger = Ledger(2, 0)
    for index, found in enumerate((group(0, 0), group(1))):
        assert ledger.draw() == index
        ledger.deliver(index, found, False)
    assert [each.prompt_index for each in ledger.next_batch() or []] == [0, 1]


def test_returned_prompts_are_drawn_first_lowest_first() -> None:
    ledger = Ledger(4, 0)
    for _ in range(3):
        ledger.draw()
    ledger.give_back(2)
    ledger.give_back(0)
    assert [ledger.draw() for _ in range(5)] == [0, 2, 3, None, None]
    assert [ledger.attempt(index) for index in range(4)] == [1, 0, 1, 0]


def test_a_prompt_can_be_claimed_if_it_may_start() -> None:
    ledger = Ledger(4, 0)
    assert ledger.claim(2)
    assert not ledger.claim(2)
    assert not ledger.claim(4)
    assert ledger.deliver(2, group(2, 0), True) == "taken"
    with pytest.raises(ValueError, match="prompt 1 is undrawn"):
        ledger.deliver(1, group(1, 0), True)
    assert [ledger.draw() for _ in range(4)] == [0, 1, 3, None]
    assert [ledger.attempt(index) for index in range(4)] == [0] * 4


def test_a_void_prompt_is_settled() -> None:
    """Given up prompts leave a batch smaller, and do not block it."""
    ledger = Ledger(3, 0)
    for _ in range(3):
        ledger.draw()
    ledger.deliver(2, group(2, 0), True)
    ledger.deliver(1, group(1, 0), True)
    ledger.void(0, "failed")
    ledger.void(1, "failed")
    assert ledger.next_batch() == [group(2, 0)]
    with pytest.raises(ValueError, match="prompt 2 is handed out"):
        ledger.void(2, "failed")


def ready(ledger: Ledger) -> None:
    ledger.deliver(0, group(0, 0), True)


def learned(ledger: Ledger) -> None:
    for index in (0, 1):
        ledger.deliver(index, group(index, 0), True)
    ledger.next_batch()
    ledger.learn(0)


@pytest.mark.parametrize(
    ("prepare", "move", "message"),
    [
        (ready, lambda ledger: ledger.give_back(0), "prompt 0 is ready; only a drawn prompt is returned"),
        (learned, lambda ledger: ledger.give_back(0), "prompt 0 is learned; only a drawn prompt is returned"),
        (ready, lambda ledger: (ledger.give_back(1), ledger.give_back(1)), "prompt 1 is returned already"),
        (learned, lambda ledger: ledger.void(1, "failed"), "prompt 1 is learned; only a drawn or ready"),
        (ready, lambda ledger: ledger.void(2, "failed"), "prompt 2 is undrawn; only a drawn or ready"),
        (ready, lambda ledger: ledger.deliver(2, group(2, 0), True), "prompt 2 is undrawn; only a drawn prompt"),
        (ready, lambda ledger: ledger.deliver(1, group(0, 0), True), "group 0 was delivered as group 1"),
        (ready, lambda ledger: ledger.learn(0), "batch 0 cannot become learned: batch 0 was not handed out"),
        (learned, lambda ledger: ledger.learn(0), "batch 0 cannot become learned: batch 1 was not handed out"),
        (learned, lambda ledger: ledger.publish(2), "version 2 cannot be published: 0 to 1 expected"),
        (learned, lambda ledger: (ledger.publish(1), ledger.publish(0)), "version 0 cannot be published: 1 to 1"),
    ],
)
def test_illegal_moves_are_refused(
    prepare: Callable[[Ledger], None], move: Callable[[Ledger], Any], message: str
) -> None:
    ledger = Ledger(2, 0)
    ledger.draw()
    ledger.draw()
    prepare(ledger)
    with pytest.raises(ValueError, match=message):
        move(ledger)


def test_a_group_older_than_the_lag_is_never_learned() -> None:
    ledger = Ledger(1, 1)
    for step in range(3):
        ledger.draw()
        ledger.deliver(step, group(step, 0), True)
        ledger.next_batch()
        if step < 2:
            ledger.learn(step)
            ledger.publish(step + 1)
    with pytest.raises(ValueError, match="group 2 is 2 versions old, but the lag is 1"):
        ledger.learn(2)


def test_resuming_with_a_smaller_lag_samples_groups_that_are_too_old_again() -> None:
    ledger = Ledger(2, 2)
    for index in range(6):
        assert ledger.draw() == index
        ledger.deliver(index, group(index, 0), True)
    again = Ledger.restore(ledger.snapshot(), ledger.ready_groups(), prompts_per_step=2, lag=0)
    assert again.counts() == {"drawn": 4, "ready": 2, "learned": 0, "void": 0, "refused": 4}
    for step in range(4):
        while (index := again.draw()) is not None:
            again.deliver(index, group(index, again.version), True)
        assert [each.prompt_index for each in again.next_batch() or []] == [2 * step, 2 * step + 1]
        again.learn(step)
        again.publish(step + 1)
    assert again.largest_staleness == 0


def test_groups_that_are_not_those_of_the_snapshot_are_refused() -> None:
    ledger = Ledger(2, 0)
    ledger.draw()
    ready(ledger)
    for groups in ([], [group(1, 0)], [group(0, 0), group(1, 0)]):
        with pytest.raises(ValueError, match="are not the ready groups"):
            Ledger.restore(ledger.snapshot(), groups, prompts_per_step=2, lag=0)


def test_versions_are_of_sampled_tokens(make_sample: Callable[..., Sample]) -> None:
    spans = (Span(1, 3, 3), Span(4, 3, 4), Span(6, 4, 5))
    assert token_versions(Group(PROBLEM, 0, (make_sample(version=2, spans=spans),))) == (4, 6)
    assert token_versions(Group(PROBLEM, 0, (make_sample(version=2), make_sample(version=5)))) == (2, 5)
    assert token_versions(Group(PROBLEM, 0, (), (make_sample(version=2),))) is None


def test_a_large_run_stays_small() -> None:
    """Forgets what is learned; drawing stays fast with many prompts in flight."""
    ledger = Ledger(512, 4, steps=100)
    sizes = []
    for step in range(12):
        while (index := ledger.draw()) is not None:
            ledger.deliver(index, group(index, ledger.version), True)
        sizes.append(len(json.dumps(ledger.snapshot())))
        assert ledger.next_batch()
        ledger.learn(step)
        ledger.publish(step + 1)
    assert all(after <= before * 1.1 + 200 for before, after in pairwise(sizes[1:]))

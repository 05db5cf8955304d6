"""Curriculum by pass rate: problems whose groups gave no signal so far are drawn rarely.

A group has a signal if its rewards differ: a problem that is never or always solved has none. The probability that a
problem is drawn is the share of its visits with a signal, and at least `keep`: none is dropped for ever. Later visits
count more, since the policy changes.

The order of problems stays the seeded shuffle (prompt_sampler.py), and a prompt index always means the same problem.
The curriculum only skips prompts: with a random number that depends on the seed and the prompt index alone, and with
records that are part of every checkpoint. So a run repeats and resumes as one without a curriculum does.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dojang.loop.advantages import first_parts
from dojang.loop.health_check import has_signal
from dojang.types import Group, Metrics, Outcome, Problem

__all__ = ["Curriculum", "Visits"]

_DECAY = 0.5
"""Weight of a visit, relative to the next one of the same problem."""


class Visits(NamedTuple):
    """Statistics of a problem over its visits; each counts half as much as the next."""

    last: int
    """Prompt index of the last visit."""
    weight: float
    """Sum of the weights of all visits."""
    signal: float
    """Share of visits whose group had a signal."""
    pass_rate: float
    """Share of accepted samples."""

    def add(self, prompt_index: int, signal: bool, pass_rate: float) -> "Visits":
        """Returns the statistics with one more visit."""
        weight = _DECAY * self.weight + 1
        return Visits(
            prompt_index,
            weight,
            self.signal + (signal - self.signal) / weight,
            self.pass_rate + (pass_rate - self.pass_rate) / weight,
        )


class Curriculum:
    """Statistics of problems, and which prompts to skip."""

    def __init__(self, seed: int = 0, keep: float = 1.0) -> None:
        """`keep` is the lowest probability that a problem is drawn; with 1 nothing is skipped."""
        self._seed = seed
        self._keep = keep
        self._visits: dict[str, Visits] = {}
        """By problem id."""
        self._skipped = 0

    def observe(self, groups: Iterable[Group]) -> None:
        """Records sampled groups, each once: a run that streams may deliver the group of its checkpoint again. Samples
        that could not be judged say nothing, and neither does a single one."""
        for group in groups if self._keep < 1 else ():
            if not group.samples:
                continue
            main = group.of(group.samples[0].role)
            episodes = first_parts(main.samples)
            before = self._visits.get(group.problem.id, Visits(-1, 0.0, 0.0, 0.0))
            if len(episodes) < 2 or before.last == group.prompt_index:
                continue
            accepted = sum(each.verdict.outcome is Outcome.ACCEPTED for each in episodes)
            self._visits[group.problem.id] = before.add(group.prompt_index, has_signal(main), accepted / len(episodes))

    def skips(self, prompt_index: int, problem: Problem) -> bool:
        """Returns whether to leave out a prompt: by chance, with the probability that its problem is drawn."""
        visits = self._visits.get(problem.id)
        if visits is None:
            return False
        skipped = _uniform(self._seed, prompt_index) >= max(self._keep, visits.signal)
        self._skipped += skipped
        return skipped

    def metrics(self) -> Metrics:
        """Number of prompts skipped since the last call, and of problems that are drawn as rarely as possible: those
        that most samples failed, and those that most samples solved."""
        if self._keep == 1:
            return {}
        skipped, self._skipped = self._skipped, 0
        solved = [each.pass_rate >= 0.5 for each in self._visits.values() if each.signal <= self._keep]
        return {
            "curriculum/skipped": float(skipped),
            "curriculum/unsolved": float(solved.count(False)),
            "curriculum/solved": float(solved.count(True)),
        }

    def state(self) -> dict[str, Sequence[float]]:
        """Returns the statistics by problem, for a checkpoint."""
        return dict(self._visits)

    def restore(self, visits: Mapping[str, Sequence[float]]) -> None:
        """Takes over the statistics of a checkpoint."""
        self._visits = (
            {name: Visits(int(each[0]), *each[1:]) for name, each in visits.items()} if self._keep < 1 else {}
        )


def _uniform(seed: int, prompt_index: int) -> float:
    """Counter-based random number of a prompt; the shuffle and the samples use other keys."""
    raw = np.random.Philox(key=[seed, 2], counter=[0, prompt_index, 0, 0]).random_raw()
    return float(raw) / 2.0**64

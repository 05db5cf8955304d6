"""Curriculum by pass rate: problems that were never or always solved at their last visit are drawn rarely.

The order of problems stays the seeded shuffle (prompt_sampler.py), and a prompt index always means the same problem.
The curriculum only skips prompts: with a random number that depends on the seed and the prompt index alone, and with
pass rates that are part of every checkpoint. So a run repeats and resumes as one without a curriculum does.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from dojang.types import Group, Metrics, Outcome, Problem

__all__ = ["Curriculum"]


class Curriculum:
    """Pass rates of problems, and which prompts to skip."""

    def __init__(self, seed: int = 0, keep: float = 1.0) -> None:
        """`keep` is the probability that a problem without a signal is drawn; with 1 nothing is skipped."""
        self._seed = seed
        self._keep = keep
        self._rates: dict[str, float] = {}
        """Share of accepted samples at the last visit, by problem id."""
        self._skipped = 0

    def observe(self, groups: Iterable[Group]) -> None:
        """Records the pass rates of sampled groups. Samples that could not be judged say nothing."""
        for group in groups if self._keep < 1 else ():
            main = [each for each in group.samples if each.role == group.samples[0].role]
            if main:
                accepted = sum(each.verdict.outcome is Outcome.ACCEPTED for each in main)
                self._rates[group.problem.id] = accepted / len(main)

    def skips(self, prompt_index: int, problem: Problem) -> bool:
        """Whether to leave out a prompt: its problem had no signal when it was last sampled, and chance says so."""
        if self._rates.get(problem.id) not in (0.0, 1.0):
            return False
        skipped = _uniform(self._seed, prompt_index) >= self._keep
        self._skipped += skipped
        return skipped

    def metrics(self) -> Metrics:
        """Number of prompts skipped since the last call, and of problems never and always solved when last sampled."""
        if self._keep == 1:
            return {}
        skipped, self._skipped = self._skipped, 0
        rates = list(self._rates.values())
        return {
            "curriculum/skipped": float(skipped),
            "curriculum/unsolved": float(rates.count(0.0)),
            "curriculum/solved": float(rates.count(1.0)),
        }

    def state(self) -> dict[str, float]:
        """Pass rates, for a checkpoint."""
        return dict(self._rates)

    def restore(self, rates: Mapping[str, float]) -> None:
        """Takes over the pass rates of a checkpoint."""
        self._rates = dict(rates) if self._keep < 1 else {}


def _uniform(seed: int, prompt_index: int) -> float:
    """Counter-based random number of a prompt; the shuffle and the samples use other keys."""
    raw = np.random.Philox(key=[seed, 2], counter=[0, prompt_index, 0, 0]).random_raw()
    return float(raw) / 2.0**64

"""Change of held-out accuracy from the first to the last evaluation, with the 95% interval of the difference."""

import math
from collections import defaultdict
from dataclasses import dataclass

from dojang.core.run_dir import ACCURACY
from dojang.diagnosis.findings import Learning
from dojang.diagnosis.record import RunRecord
from dojang.loop.exact_statistics import clopper_pearson
from dojang.loop.statistics import compare

__all__ = ["HeldOut", "held_out_change", "same_answers"]

SOLVED = 0.97
"""Accuracy from which little is left to learn; what is missing is often wrong labels."""
CLEARLY_HIGHER = 0.05
"""Rise from which too few held-out problems, not a lack of learning, is the likely reason for a wide interval."""
PRECISE = 0.15
"""Upper end of the interval above which an evaluation cannot show that nothing was learned: 30 problems or fewer."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Accuracy before and after, and the interval of its difference."""

    first_step: int
    last_step: int
    before: float
    after: float
    low: float
    high: float
    problems: int | None
    """None if neither the rollouts nor the settings tell: then nothing is known about the difference."""
    paired: bool
    """Whether the interval is that of paired answers to the same problems; else of two proportions."""

    @property
    def learning(self) -> Learning:
        if self.before >= SOLVED and self.after >= SOLVED:
            return Learning.SOLVED
        if self.low > 0:
            return Learning.BETTER
        if self.high < 0:
            return Learning.WORSE
        return Learning.UNCLEAR if self._rose or self.high > PRECISE else Learning.SAME

    @property
    def _rose(self) -> bool:
        return self.after - self.before >= CLEARLY_HIGHER

    @property
    def improved(self) -> bool:
        """Whether accuracy rose, or had no room to; an unclear rise counts, to raise no false alarm."""
        return self.learning in (Learning.BETTER, Learning.SOLVED) or (self.learning is Learning.UNCLEAR and self._rose)

    def __str__(self) -> str:
        change = (
            f"held-out accuracy {self.before:.1%} at step {self.first_step}, {self.after:.1%} at step "
            f"{self.last_step}: {self.after - self.before:+.1%}"
        )
        if self.problems is None:
            return f"{change}; without config.yaml and rollouts the number of problems is not known"
        method = "paired," if self.paired else "unpaired, at most"
        return f"{change}, 95% interval [{self.low:+.1%}, {self.high:+.1%}], {method} {self.problems} problems"


def held_out_change(record: RunRecord) -> HeldOut | None:
    """Change since the first evaluation; None with fewer than two evaluations."""
    if len(record.evaluations) < 2:
        return None
    first, last = record.evaluations[0], record.evaluations[-1]
    steps = int(first["step"]), int(last["step"])
    if steps[0] == steps[1]:
        return None
    before, after = first[ACCURACY], last[ACCURACY]
    if paired := _paired(record, *steps):
        low, high, count = paired
        return HeldOut(*steps, before, after, low, high, count, True)
    # The split may have fewer, but a run without its rollouts does not tell.
    most: int | None = record.setting("eval.problems", None)
    low, high = (-1.0, 1.0) if most is None else _unpaired(before, after, most)
    return HeldOut(*steps, before, after, low, high, most, False)


def _paired(record: RunRecord, first: int, last: int) -> tuple[float, float, int] | None:
    counts: list[dict[int, list[int]]] = []
    for step in (first, last):
        found: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
        for sample in record.samples("test", step, ("prompt_index", "outcome", "reward")):
            if sample["reward"] is not None:
                found[sample["prompt_index"]][0] += sample["outcome"] == "accepted"
                found[sample["prompt_index"]][1] += 1
        counts.append(found)
    both = [index for index in counts[0] if index in counts[1]]
    if not both:
        return None
    before, after = ([(each[index][0], each[index][1]) for index in both] for each in counts)
    gap = compare(before, after)
    return gap.low, gap.high, gap.problems


def _unpaired(before: float, after: float, problems: int) -> tuple[float, float]:
    """Newcombe's interval of a difference (1998, method 10), from Clopper-Pearson intervals of both proportions."""
    (low_b, high_b), (low_a, high_a) = (clopper_pearson(share * problems, problems) for share in (before, after))
    gap = after - before
    return gap - math.hypot(after - low_a, high_b - before), gap + math.hypot(high_a - after, before - low_b)


def same_answers(record: RunRecord, change: HeldOut) -> float | None:
    """Share of held-out problems whose completion is the same before and after; None without the rollouts."""
    before, after = (
        {
            (sample["prompt_index"], sample["index"]): sample["response"]
            for sample in record.samples("test", step, ("prompt_index", "index", "response"))
        }
        for step in (change.first_step, change.last_step)
    )
    both = [key for key in before if key in after]
    return sum(before[key] == after[key] for key in both) / len(both) if both else None

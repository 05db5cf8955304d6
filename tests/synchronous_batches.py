"""Groups with token versions, and the batches that the synchronous loop would train on."""

import itertools
from collections.abc import Callable, Collection

from dojang.types import Group, Message, Outcome, Problem, Sample, Span, Verdict

PROBLEM = Problem("sums/1", "sums", (Message("user", "1+1?"),), "2")


def group(index: int, *versions: int) -> Group:
    """A group with one sample, whose tokens are of these versions; without samples if there are none."""
    if not versions:
        return Group(PROBLEM, index, ())
    size = len(versions)
    spans = tuple(Span(version, at, at + 1) for at, version in enumerate(versions))
    verdict = Verdict(Outcome.WRONG, 0.0)
    sample = Sample([1] * size, [True] * size, [-1.0] * size, "", "stop", versions[0], verdict, spans=spans)
    return Group(PROBLEM, index, (sample,))


def synchronous_batches(
    size: int, rounds: int, steps: int, signal: Callable[[int], bool], skipped: Collection[int] = ()
) -> list[list[int]]:
    """Batches by the definition: draw P prompts, apart from skipped ones; for each round draw as many more as lack;
    keep those with signal."""
    order = (index for index in itertools.count() if index not in skipped)
    batches = []
    for _ in range(steps):
        drawn = list(itertools.islice(order, size))
        for _ in range(rounds):
            missing = size - sum(map(signal, drawn))
            drawn += itertools.islice(order, missing)
        batches.append([index for index in drawn if signal(index) or not rounds])
    return batches

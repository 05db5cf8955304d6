"""A GRPO step as everybody plays it: the same prompts, numbers of tokens and rewards, and one clock.

Nothing heavy is imported here: a contestant's start-up is its own.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

__all__ = ["MOST", "PROMPTS", "SAMPLES", "Begun", "Clock", "Spent", "prompts", "reward", "wanted"]

STARTED = time.perf_counter()
PROMPTS, SAMPLES = 8, 8
MEAN, MOST = 64, 256


@dataclass(frozen=True)
class Spent:
    """Seconds on the clock, and of all threads of the processor."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Spent":
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: "Spent") -> "Spent":
        return Spent(self.wall - other.wall, self.cpu - other.cpu)


class Begun(Exception):
    """The first step would begin now, and only that was asked."""


@dataclass
class Clock:
    """What each part of each step took, and what came before the first."""

    steps: int
    """To be counted, after one to warm up; with none, the start-up is all that is played."""
    parts: dict[str, list[Spent]] = field(default_factory=lambda: defaultdict(list))
    startup: Spent | None = None

    def begin(self) -> None:
        """Everything is ready for a step."""
        if self.startup is None:
            self.startup = Spent.now() - Spent(STARTED, 0.0)
            if not self.steps:
                raise Begun

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        before = Spent.now()
        yield
        self.parts[name].append(Spent.now() - before)

    def split(self, starts: Sequence[Spent]) -> None:
        """TRL's update is what a step took besides generating and rewarding; it ends where the next one begins."""
        for before, after, generated, rewarded in zip(
            starts[:-1], starts[1:], self.parts["generate"], self.parts["reward"], strict=True
        ):
            self.parts["step"].append(after - before)
            self.parts["update"].append(after - before - generated - rewarded)


def wanted(lengths: str, step: int) -> list[int]:
    """How many tokens each sample of a step is to have."""
    from lengths import geometric

    if lengths == "uniform":
        return [MEAN] * (PROMPTS * SAMPLES)
    random = Random(step)
    return [geometric(random, MEAN, MOST) for _ in range(PROMPTS * SAMPLES)]


def prompts(step: int) -> list[str]:
    """Sums, a token for each character or so."""
    random = Random(1000 + step)
    return [
        " ".join(f"{random.randrange(100)}+{random.randrange(100)}" for _ in range(random.randint(7, 10)))
        for _ in range(PROMPTS)
    ]


def reward(text: str) -> float:
    return len(set(text)) / 100

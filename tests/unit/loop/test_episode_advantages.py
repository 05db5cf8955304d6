"""Advantages of episodes in several parts, and of single turns."""

from collections.abc import Sequence

import numpy as np
import pytest

from dojang.algos.grpo import GrpoConfig
from dojang.loop.advantages import compute_advantages, first_parts
from dojang.types import Group, Outcome, Problem, Sample, Turn, Verdict

PROBLEM = Problem("p", "tests", (), "")


def episode(index: int, rewards: Sequence[float], part: int = 0, total: float | None = None) -> Sample:
    """A sample of two prompt tokens, then two tokens per reply with one of the environment's between them."""
    tokens, mask, turns = [1, 1], [False, False], []
    for at, reward in enumerate(rewards):
        if at:
            turns.append(Turn("user", len(tokens), len(tokens) + 1))
            tokens, mask = [*tokens, 2], [*mask, False]
        turns.append(Turn("assistant", len(tokens), len(tokens) + 2, reward))
        tokens, mask = [*tokens, 3, 3], [*mask, True, True]
    reward = sum(rewards) if total is None else total
    return Sample(
        tokens=np.array(tokens),
        mask=np.array(mask),
        logprobs=np.zeros(len(tokens)),
        text="",
        finish="stop",
        version=0,
        verdict=Verdict(Outcome.WRONG, reward),
        index=index,
        turn=part,
        turns=tuple(turns),
    )


def group(*samples: Sample) -> Group:
    return Group(PROBLEM, 0, samples)


def grpo(*rewards: float) -> list[float]:
    """Advantages by the definition of GRPO: distance from the mean in standard deviations of the group."""
    spread = np.std(rewards, ddof=1)
    return [(each - np.mean(rewards)) / (spread + 1e-6) if spread else 0.0 for each in rewards]


def test_an_episode_in_two_parts_counts_once() -> None:
    algorithm = GrpoConfig().make(8)
    parts = group(episode(0, [1.0], total=1.0), episode(0, [0.0], 1, total=1.0), episode(1, [0.0]), episode(2, [0.5]))
    (found,) = compute_advantages(algorithm, [parts])
    assert [each.index for each in first_parts(parts.samples)] == [0, 1, 2]
    first, low, middle = grpo(1.0, 0.0, 0.5)
    assert [each.advantage for each in found.samples] == pytest.approx([first, first, low, middle], abs=1e-4)


def test_turns_are_compared_with_the_same_turn_by_the_rewards_from_there_on() -> None:
    algorithm = GrpoConfig().make(8)
    (found,) = compute_advantages(algorithm, [group(episode(0, [0.0, 1.0]), episode(1, [0.5, 0.0, 0.0]))], "turn")
    first, second = grpo(1.0, 0.5), grpo(1.0, 0.0)
    left, right = found.samples
    assert left.sampled(left.advantages) == pytest.approx([first[0]] * 2 + [second[0]] * 2, abs=1e-4)
    assert right.sampled(right.advantages) == pytest.approx([first[1]] * 2 + [second[1]] * 2 + [0.0] * 2, abs=1e-4)
    assert not left.advantages[~left.mask].any()
    assert found.has_advantage


def test_turns_go_on_in_the_next_part_of_an_episode() -> None:
    algorithm = GrpoConfig().make(8)
    split = group(episode(0, [0.0]), episode(0, [1.0], 1), episode(1, [0.0, 0.0]))
    (found,) = compute_advantages(algorithm, [split], "turn")
    high, low = grpo(1.0, 0.0)
    one, two, other = found.samples
    assert one.sampled(one.advantages) == two.sampled(two.advantages) == pytest.approx([high] * 2, abs=1e-4)
    assert other.sampled(other.advantages) == pytest.approx([low] * 4, abs=1e-4)

"""algo.whiten_advantages against its definition: mean 0 and standard deviation 1 over the batch's trained tokens."""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from dojang.algos.advantages import Estimator
from dojang.algos.grpo import GrpoConfig
from dojang.algos.m2po import M2poConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.ppo import PpoConfig
from dojang.algos.role_advantages import MultiRoleAlgorithm
from dojang.types import Group, Problem, Sample

MakeSample = Callable[..., Sample]
REWARDS = [(1.0, 0.0, 0.0, 0.5), (0.0, 1.0), (0.5, 0.5, 0.5), (1.0, 1.0, 0.0)]
LENGTHS = [(3, 11, 2, 5), (1, 40), (7, 7, 9), (2, 6, 30)]


@pytest.fixture
def groups(problem: Problem, make_sample: MakeSample) -> list[Group]:
    """Samples of different lengths; the rewards of the third group are all alike."""
    return [
        Group(
            problem,
            prompt_index,
            tuple(
                make_sample(reward, answer=tuple(range(length)), index=index)
                for index, (reward, length) in enumerate(zip(rewards, lengths, strict=True))
            ),
        )
        for prompt_index, (rewards, lengths) in enumerate(zip(REWARDS, LENGTHS, strict=True))
    ]


def of_tokens(groups: list[Group], advantages: list[tuple[float, ...]]) -> NDArray[np.float64]:
    """The advantage of every trained token of the groups that are trained on."""
    rows = [
        [advantage] * sum(sample.mask)
        for group, some in zip(groups, advantages, strict=True)
        if any(some)
        for sample, advantage in zip(group.samples, some, strict=True)
    ]
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_whitened_advantages_agree_with_the_oracle(groups: list[Group], estimator: Estimator) -> None:
    plain = GrpoConfig(advantage=estimator).make(max_tokens=64).advantages(groups)
    white = GrpoConfig(advantage=estimator, whiten_advantages=True).make(max_tokens=64).advantages(groups)
    tokens = of_tokens(groups, plain)
    mean, std = tokens.mean(), tokens.std(ddof=1)
    for before, after in zip(plain, white, strict=True):
        expected = [(each - mean) / (std + 1e-8) for each in before] if any(before) else [0.0] * len(before)
        np.testing.assert_allclose(after, expected, rtol=1e-9, atol=1e-12)


def test_tokens_of_the_batch_have_mean_zero_and_deviation_one(groups: list[Group]) -> None:
    tokens = of_tokens(groups, GrpoConfig(whiten_advantages=True).make(max_tokens=64).advantages(groups))
    assert tokens.mean() == pytest.approx(0.0, abs=1e-12)
    assert tokens.std(ddof=1) == pytest.approx(1.0, rel=1e-6)


def test_groups_without_signal_stay_zero_and_do_not_count(groups: list[Group]) -> None:
    algorithm = GrpoConfig(whiten_advantages=True).make(max_tokens=64)
    with_it, without = algorithm.advantages(groups), algorithm.advantages([*groups[:2], *groups[3:]])
    assert with_it[2] == (0.0, 0.0, 0.0)
    assert [*with_it[:2], *with_it[3:]] == without


@pytest.mark.parametrize("rewards", [(), (1.0,), (0.5, 0.5)])
def test_a_batch_that_cannot_teach_has_no_advantages(make_group: Callable[..., Group], rewards: tuple[float]) -> None:
    algorithm = GrpoConfig(whiten_advantages=True).make(max_tokens=64)
    assert algorithm.advantages([make_group(rewards)]) == [(0.0,) * len(rewards)]


def test_samples_without_tokens_do_not_divide_by_zero(problem: Problem, make_sample: MakeSample) -> None:
    samples = (make_sample(1.0, answer=()), make_sample(0.0, answer=(4,)))
    (found,) = GrpoConfig(whiten_advantages=True).make(max_tokens=64).advantages([Group(problem, 0, samples)])
    assert np.isfinite(found).all()


@pytest.mark.parametrize("config", [GrpoConfig(whiten_advantages=True), M2poConfig(whiten_advantages=True)])
def test_advantages_are_whitened_per_role(groups: list[Group], config: PolicyGradientConfig) -> None:
    coded, tested = groups[:2], groups[2:]
    mixed = [
        replace(
            coder,
            samples=(
                *(replace(each, role="tester") for each in tester.samples),
                *(replace(each, role="coder") for each in coder.samples),
            ),
        )
        for coder, tester in zip(coded, tested, strict=True)
    ]
    found = MultiRoleAlgorithm({role: config.make(64) for role in ("coder", "tester")}).advantages(mixed)
    alone = zip(config.make(64).advantages(tested), config.make(64).advantages(coded), strict=True)
    assert found == [(*tester, *coder) for tester, coder in alone]


def test_ppo_is_whitened_by_its_own_setting() -> None:
    with pytest.raises(ValidationError, match=r"algo\.whiten"):
        PpoConfig(whiten_advantages=True)

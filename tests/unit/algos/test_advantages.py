"""Advantages against numpy, and numbers worked out by hand."""

from collections.abc import Callable, Mapping, Sequence
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from dojang.algos.advantages import Estimator
from dojang.algos.grpo import DapoConfig, GdpoConfig, GrpoConfig
from dojang.core.errors import ConfigError
from dojang.types import Group, Outcome, Problem, Sample, Verdict

Array = NDArray[np.float64]
MakeGroup = Callable[..., Group]
MakeSample = Callable[..., Sample]
Rewards = Sequence[Sequence[float]]

ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)
WITHIN_GROUPS: tuple[Estimator, ...] = ("grpo", "mean", "rloo", "maxrl", "reinforce++-baseline")
BATCHES: list[Rewards] = [
    [(1.0, 0.0, 0.0), (1.0, 1.0, 0.0)],
    [(1.5, 0.5, 0.25, 0.0), (0.1, 0.2), (3.0, -2.0, 0.0, 0.0, 1.0)],
    [(1.0, 0.0), (0.5, 0.5, 0.5), (0.3,), (-1.0, -3.0)],
    [(0.1, 0.2, 0.7)],
]


def standardised(values: Array) -> Array:
    if np.ptp(values) == 0:
        return np.zeros_like(values)
    return np.asarray((values - values.mean()) / (values.std(ddof=1) + 1e-6))


def whitened(groups: list[Array]) -> list[Array]:
    values = np.concatenate(groups)
    return [(group - values.mean()) / (values.std(ddof=1) + 1e-8) for group in groups]


def oracle(estimator: Estimator, groups: list[Array]) -> list[Array]:
    centred = [group - group.mean() for group in groups]
    if estimator == "grpo":
        return [standardised(group) for group in groups]
    if estimator == "mean":
        return centred
    if estimator == "rloo":
        others = [
            [np.delete(group, i).mean() if len(group) > 1 else group[i] for i in range(len(group))] for group in groups
        ]
        return [group - np.array(baseline) for group, baseline in zip(groups, others, strict=True)]
    if estimator == "maxrl":
        return [(group - group.mean()) / group.mean() if group.mean() > 0 else np.zeros_like(group) for group in groups]
    if estimator == "reinforce++":
        return whitened(groups)
    if estimator == "reinforce++-baseline":
        return [group / np.concatenate(centred).std(ddof=1) for group in centred]
    return whitened([standardised(group) for group in groups])  # gdpo of rewards in one part


def allowed(estimator: Estimator, rewards: Sequence[float]) -> tuple[float, ...]:
    """Rewards that the estimator is defined for."""
    return tuple(map(abs, rewards)) if estimator == "maxrl" else tuple(rewards)


def credit(make_group: MakeGroup, estimator: Estimator, groups: Rewards) -> list[tuple[float, ...]]:
    return GrpoConfig(advantage=estimator).make(max_tokens=64).advantages([make_group(group) for group in groups])


@pytest.fixture
def in_parts(problem: Problem, make_sample: MakeSample) -> Callable[..., Group]:
    """Makes a group of samples whose rewards have these parts."""

    def make(*samples: Mapping[str, float]) -> Group:
        verdicts = [Verdict(Outcome.WRONG, 0.0, parts=parts) for parts in samples]
        return Group(problem, 0, tuple(make_sample(verdict=verdict) for verdict in verdicts))

    return make


@pytest.mark.parametrize("estimator", [each for each in ESTIMATORS if not each.endswith("-tokens")])
@pytest.mark.parametrize("groups", BATCHES)
def test_advantages_agree_with_the_oracle(make_group: MakeGroup, estimator: Estimator, groups: Rewards) -> None:
    groups = [allowed(estimator, group) for group in groups]
    expected = oracle(estimator, [np.array(group) for group in groups])
    found = credit(make_group, estimator, groups)
    assert [len(each) for each in found] == [len(group) for group in groups]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-14)


@pytest.mark.parametrize(
    ("estimator", "groups", "expected"),
    [
        ("grpo", [(1.0, 0.0, 0.0)], [(1.1546985, -0.5773493, -0.5773493)]),  # 2/3 and 1/3 over sqrt(1/3) + 1e-6
        ("mean", [(1.0, 0.0, 0.5, 0.5)], [(0.5, -0.5, 0.0, 0.0)]),
        ("rloo", [(1.0, 0.0, 0.0, 0.0)], [(1.0, -1 / 3, -1 / 3, -1 / 3)]),
        ("rloo", [(3.0, 1.0)], [(2.0, -2.0)]),
        ("maxrl", [(1.0, 0.0, 0.0, 0.0)], [(3.0, -1.0, -1.0, -1.0)]),
        ("maxrl", [(1.0, 1.0, 1.0, 0.0)], [(1 / 3, 1 / 3, 1 / 3, -1.0)]),
        ("reinforce++", [(1.0, 0.0), (1.0, 1.0)], [(0.5, -1.5), (0.5, 0.5)]),  # mean 3/4, std 1/2
        ("reinforce++-baseline", [(1.0, 0.0), (1.0, 1.0)], [(1.2247449, -1.2247449), (0.0, 0.0)]),  # std sqrt(1/6)
    ],
)
def test_advantages_by_hand(
    make_group: MakeGroup, estimator: Estimator, groups: Rewards, expected: list[tuple[float, ...]]
) -> None:
    for one, other in zip(credit(make_group, estimator, groups), expected, strict=True):
        assert one == pytest.approx(other, abs=1e-7)


@pytest.mark.parametrize("estimator", ["grpo", "mean", "rloo", "maxrl"])
def test_other_groups_do_not_matter_to_what_is_compared_within_a_group(
    make_group: MakeGroup, estimator: Estimator
) -> None:
    (alone,) = credit(make_group, estimator, [(1.0, 0.25, 0.0)])
    assert credit(make_group, estimator, [(5.0, 4.0), (1.0, 0.25, 0.0), ()])[1] == alone


@pytest.mark.parametrize("estimator", WITHIN_GROUPS)
def test_the_advantages_of_a_group_cancel(make_group: MakeGroup, estimator: Estimator) -> None:
    for found in credit(make_group, estimator, [(1.5, 0.5, 0.25, 0.0), (0.1, 0.7, 0.2)]):
        assert sum(found) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("rewards", [(), (1.5,), (0.25, 0.25), (0.1,) * 7, (-1.0, -1.0), (0.0, -0.0)])
def test_rewards_that_do_not_differ_give_no_advantage(
    make_group: MakeGroup, rewards: tuple[float, ...], estimator: Estimator
) -> None:
    rewards = allowed(estimator, rewards)
    nothing = (0.0,) * len(rewards)
    assert credit(make_group, estimator, [rewards]) == [nothing]
    assert credit(make_group, estimator, [rewards, (), rewards]) == [nothing, (), nothing]


@pytest.mark.parametrize("estimator", WITHIN_GROUPS)
@pytest.mark.parametrize("rewards", [(), (1.5,), (0.1,) * 7, (-0.3, -0.3, -0.3)])
def test_a_group_of_equal_rewards_has_zero_advantages(
    make_group: MakeGroup, rewards: tuple[float, ...], estimator: Estimator
) -> None:
    found = credit(make_group, estimator, [(1.0, 0.0), allowed(estimator, rewards)])
    assert found[1] == (0.0,) * len(rewards)
    assert found[0][0] > 0 > found[0][1]


def test_reinforce_plus_plus_compares_equal_groups_with_the_batch(make_group: MakeGroup) -> None:
    found = credit(make_group, "reinforce++", [(0.0, 0.0), (1.0, 1.0), (1.0,), ()])
    assert found[0] == pytest.approx((-1.0954451, -1.0954451), abs=1e-7)  # mean 3/5, variance 3/10
    assert found[1] == pytest.approx((0.7302967, 0.7302967), abs=1e-7)
    assert found[2] == pytest.approx((0.7302967,), abs=1e-7)
    assert found[3] == ()


@pytest.mark.parametrize("rewards", [(1.0, -1.0), (1.0, -2.0), (-0.5, -1.0, 0.0), (2.0, -0.1), (-1.0, -1.0)])
def test_maxrl_refuses_negative_rewards(make_group: MakeGroup, rewards: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=f"a reward of {min(rewards):g} with algo.advantage=maxrl"):
        credit(make_group, "maxrl", [(1.0, 0.0), rewards])
    with pytest.raises(ValidationError, match=r"overlong_buffer_fraction=0.5 makes rewards negative, and"):
        GrpoConfig(advantage="maxrl", overlong_buffer_fraction=0.5)


def test_reinforce_over_tokens_is_whitening_of_every_tokens_return(problem: Problem, make_sample: MakeSample) -> None:
    """Each token's return is the reward of its answer; mean and variance (n - 1) are those of all tokens of a batch."""
    rng = np.random.default_rng(1)
    rewards, lengths = [rng.normal(size=4), rng.normal(size=3), np.full(2, 0.5)], [(3, 9, 1, 4), (7, 2, 2), (5, 6)]
    groups = [
        Group(problem, at, tuple(make_sample(r, answer=range(n)) for r, n in zip(own, sizes, strict=True)))
        for at, (own, sizes) in enumerate(zip(rewards, lengths, strict=True))
    ]
    baselines: dict[Estimator, list[Array]] = {
        "reinforce++-tokens": rewards,
        "reinforce++-baseline-tokens": [own - own.mean() for own in rewards],
    }
    for estimator, scores in baselines.items():
        tokens = np.concatenate([np.repeat(own, sizes) for own, sizes in zip(scores, lengths, strict=True)])
        expected = (np.concatenate(scores) - tokens.mean()) / np.sqrt(tokens.var(ddof=1) + 1e-8)
        found = GrpoConfig(advantage=estimator).make(max_tokens=64).advantages(groups)
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_no_groups_have_no_advantages(make_group: MakeGroup, estimator: Estimator) -> None:
    assert credit(make_group, estimator, []) == []


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [(0.8660254, -0.8660254), (0.8660254, -0.8660254)]),
        ({"format": 0.0}, [(1.2247449, -1.2247449), (0.0, 0.0)]),
        ({"format": 2.0}, [(0.5477226, -0.5477226), (1.0954451, -1.0954451)]),
        ({"format": -1.0}, [(0.8660254, -0.8660254), (-0.8660254, 0.8660254)]),
    ],
)
def test_gdpo_by_hand(
    in_parts: Callable[..., Group], weights: dict[str, float], expected: list[tuple[float, ...]]
) -> None:
    # Each part of two that differ is +-0.7071; the sums are divided by their std over the four samples.
    groups = [
        in_parts({"correct": 1.0, "format": 1.0}, {"correct": 0.0, "format": 1.0}),
        in_parts({"correct": 0.0, "format": 0.5}, {"correct": 0.0, "format": 0.25}),
    ]
    for one, other in zip(
        GdpoConfig(reward_weights=weights).make(max_tokens=64).advantages(groups), expected, strict=True
    ):
        assert one == pytest.approx(other, abs=1e-5)


def test_gdpo_agrees_with_the_oracle(in_parts: Callable[..., Group]) -> None:
    rng = np.random.default_rng(3)
    names, weights = ("a", "b", "c"), {"a": 0.5, "c": 3.0}
    tables = [rng.normal(size=(size, 3)) * (1.0, 10.0, 0.01) for size in (4, 2, 7, 1)]
    groups = [in_parts(*(dict(zip(names, row, strict=True)) for row in table.tolist())) for table in tables]
    sums = [sum(weights.get(name, 1.0) * standardised(table[:, i]) for i, name in enumerate(names)) for table in tables]
    expected = whitened([np.asarray(each) for each in sums])
    found = GdpoConfig(reward_weights=weights).make(max_tokens=64).advantages(groups)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


def test_gdpo_of_parts_that_do_not_differ_is_nothing(in_parts: Callable[..., Group]) -> None:
    groups = [in_parts({"a": 0.1, "b": 0.7}, {"a": 0.1, "b": 0.7}), in_parts({"a": 5.0, "b": 0.3}), in_parts()]
    assert GdpoConfig().make(max_tokens=64).advantages(groups) == [(0.0, 0.0), (0.0,), ()]


def test_gdpo_leaves_a_sample_out_of_the_parts_it_lacks(in_parts: Callable[..., Group]) -> None:
    """As TRL does with a reward function that returns None: a part is normalised among the samples that have it."""
    groups = [in_parts({"a": 1.0, "b": 1.0}, {"a": 0.5}, {"a": 0.0, "b": 2.0})]
    a, b = standardised(np.array([1.0, 0.5, 0.0])), standardised(np.array([1.0, 2.0]))
    (expected,) = whitened([a + np.array([b[0], 0.0, b[1]])])
    np.testing.assert_allclose(GdpoConfig().make(max_tokens=64).advantages(groups)[0], expected, rtol=1e-12, atol=1e-15)


def test_gdpo_weighs_the_terms_of_the_reward_as_the_task_does(problem: Problem, make_sample: MakeSample) -> None:
    """Equation 4 to 6 of arXiv 2601.05242: sum over k of w_k (r_k - mean_k) / std_k, normalised over the batch."""
    rng = np.random.default_rng(5)
    names, weights = ("correct", "length", "format"), np.array([2.0, -0.5, 0.25])
    tables = [rng.normal(size=(size, 3)) for size in (4, 6)]
    groups = [
        Group(
            problem,
            at,
            tuple(
                make_sample(
                    verdict=Verdict(
                        Outcome.WRONG,
                        float(row @ weights),
                        parts=dict.fromkeys(names, 1.0),  # what is recorded need not be what is paid
                        terms={name: (w, r) for name, w, r in zip(names, weights.tolist(), row.tolist(), strict=True)},
                    )
                )
                for row in table
            ),
        )
        for at, table in enumerate(tables)
    ]
    for own, config in (
        (weights, GdpoConfig()),
        (np.array([2.0, 3.0, 0.25]), GdpoConfig(reward_weights={"length": 3.0})),
    ):
        sums = [((table - table.mean(0)) / (table.std(0, ddof=1) + 1e-6) * own).sum(1) for table in tables]
        batch = np.concatenate(sums)
        expected = (batch - batch.mean()) / (batch.std(ddof=1) + 1e-8)
        found = np.concatenate(config.make(max_tokens=64).advantages(groups))
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("parts", [{}, {"correct": 1.0}])
def test_an_unjudged_sample_cannot_be_credited(
    make_group: MakeGroup, make_sample: MakeSample, estimator: Estimator, parts: dict[str, float]
) -> None:
    group = make_group((1.0,))
    unjudged = make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None, parts=parts, detail="lost"))
    broken = Group(group.problem, 0, (*group.samples, unjudged))
    with pytest.raises(ValueError, match="must not be trained on"):
        GrpoConfig(advantage=estimator).make(max_tokens=64).advantages([broken])


def of_lengths(problem: Problem, make_sample: MakeSample, lengths: Sequence[int], first: float = 1.0) -> Group:
    """All with the reward 1, but the first."""
    rewards = (first, *(1.0 for _ in lengths[1:]))
    made = (make_sample(reward, answer=range(length)) for reward, length in zip(rewards, lengths, strict=True))
    return Group(problem, 0, tuple(made))


def test_rewards_fall_before_the_longest_answer(problem: Problem, make_sample: MakeSample) -> None:
    lengths, shaped = (1, 12, 13, 16, 20), np.array([2.0, 1.0, 0.9375, 0.75, 0.5])  # -0.5 * (length - 12) / 8
    config = DapoConfig(advantage="mean", overlong_buffer_fraction=0.4, overlong_penalty=0.5)
    (found,) = config.make(max_tokens=20).advantages([of_lengths(problem, make_sample, lengths, 2.0)])
    np.testing.assert_allclose(found, shaped - shaped.mean(), rtol=1e-12)


def test_rewards_fall_in_groups_of_one_sample(problem: Problem, make_sample: MakeSample) -> None:
    groups = [of_lengths(problem, make_sample, (length,), 1.0) for length in (2, 10)]
    ((short,), (long,)) = (
        GrpoConfig(advantage="reinforce++", overlong_buffer_fraction=0.5).make(max_tokens=10).advantages(groups)
    )
    assert short == pytest.approx(-long) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("estimator", ["grpo", "mean", "rloo", "reinforce++", "reinforce++-baseline"])
def test_every_estimator_sees_the_shaped_rewards(
    problem: Problem, make_group: MakeGroup, make_sample: MakeSample, estimator: Estimator
) -> None:
    group = of_lengths(problem, make_sample, (2, 6, 7, 10), 2.0)  # of which the last 5 count
    found = GrpoConfig(advantage=estimator, overlong_buffer_fraction=0.5).make(max_tokens=10).advantages([group])
    expected = credit(make_group, estimator, [(2.0, 1.0 - 0.2, 1.0 - 0.4, 0.0)])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_gdpo_too_prefers_the_shorter_answer(problem: Problem, make_sample: MakeSample) -> None:
    group = of_lengths(problem, make_sample, (2, 3, 9))
    ((first, second, last),) = GdpoConfig(overlong_buffer_fraction=0.5).make(max_tokens=10).advantages([group])
    assert first == second > 0 > last


def test_length_does_not_matter_unless_asked_for(problem: Problem, make_sample: MakeSample) -> None:
    group = of_lengths(problem, make_sample, (1, 30, 64))
    assert GrpoConfig().make(max_tokens=64).advantages([group]) == [(0.0, 0.0, 0.0)]


def test_length_does_not_matter_among_answers_that_are_all_alike(problem: Problem, make_sample: MakeSample) -> None:
    group = of_lengths(problem, make_sample, (1, 30, 64))
    assert DapoConfig().make(max_tokens=64).advantages([group]) == [(0.0, 0.0, 0.0)]

from collections.abc import Callable
from dataclasses import replace

import pytest

from dojang.algos.grpo import DrGrpoConfig, GdpoConfig, GrpoConfig, ReinforceConfig, RlooConfig
from dojang.algos.m2po import M2poConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.role_advantages import MultiRoleAlgorithm
from dojang.loop.health_check import has_signal
from dojang.protocols import Algorithm
from dojang.types import Group

CODED = ((1.0, 0.0, 0.0), (0.5, 1.0), (0.0, 0.0, 0.0, 1.0))
TESTED = ((0.5, 1.0), (), (0.0, 0.0, 0.5))


def mixed(coder: Group, tester: Group) -> Group:
    """Samples of both, not one role after the other."""
    samples = [
        *(replace(each, role="coder") for each in coder.samples),
        *(replace(each, role="tester") for each in tester.samples),
    ]
    return replace(coder, samples=tuple(sorted(samples, key=lambda each: each.index)))


@pytest.mark.parametrize("config", [GrpoConfig(), M2poConfig(), RlooConfig(), ReinforceConfig(), GdpoConfig()])
def test_advantages_equal_those_of_each_role_alone(
    make_group: Callable[..., Group], config: PolicyGradientConfig
) -> None:
    coded = [make_group(rewards, prompt_index=at) for at, rewards in enumerate(CODED)]
    tested = [make_group(rewards, prompt_index=at) for at, rewards in enumerate(TESTED)]
    both = list(map(mixed, coded, tested))
    algorithm: Algorithm = MultiRoleAlgorithm({"coder": config.make(9), "tester": config.make(5)})
    found = algorithm.advantages(both)
    alone = {"coder": config.make(9).advantages(coded), "tester": config.make(5).advantages(tested)}
    for at, group in enumerate(both):
        for role, credits in alone.items():
            mine = [each for each, sample in zip(found[at], group.samples, strict=True) if sample.role == role]
            assert mine == list(credits[at])


def test_properties_of_several_roles_are_those_of_their_settings() -> None:
    both = MultiRoleAlgorithm(
        {
            role: M2poConfig(kl_coef=0.1, max_resample_rounds=2, loss_aggregation="sequences").make(9)
            for role in ("coder", "tester")
        }
    )
    assert (both.loss_aggregation, both.max_resample_rounds, both.requirements.reference) == ("sequences", 2, True)
    assert both.requirements.zero_advantage  # by its KL term
    assert (both.requirements.old_logprobs, both.requirements.limit, both.requirements.critic) == (False, True, False)


def test_a_role_that_is_not_known_is_not_overlooked(make_group: Callable[..., Group]) -> None:
    config = GrpoConfig()
    with pytest.raises(KeyError):
        MultiRoleAlgorithm({"coder": config.make(9)}).advantages([make_group((0.0, 1.0))])


def test_second_attempts_are_compared_with_second_attempts(make_group: Callable[..., Group]) -> None:
    """First attempts that all failed, and second ones of which one is right: only those say anything."""
    group = make_group((0.0, 0.0, 0.0, 1.0, 0.0))
    samples = [replace(each, role="coder", turn=int(at > 2)) for at, each in enumerate(group.samples)]
    both = MultiRoleAlgorithm({role: DrGrpoConfig().make(9) for role in ("coder", "tester")})
    assert both.advantages([replace(group, samples=tuple(samples))]) == [(0.0, 0.0, 0.0, 0.5, -0.5)]
    assert not has_signal(replace(group, samples=tuple(replace(each, turn=at) for at, each in enumerate(samples))))

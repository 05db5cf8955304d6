"""KL in the reward, against veRL's definitions written out in torch."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import pytest
import torch

from dojang.algos.grpo import GrpoConfig, RlooConfig
from dojang.algos.ppo import PpoConfig
from dojang.algos.reward_kl import Penalty
from dojang.types import Group, Problem, Sample

LOGPROBS = [(0.0, -1.0, -30.0, -2.0), (0.0, -0.5, -0.25, -3.0)]
REFERENCE = [(0.0, -1.5, -1.0, -2.0), (0.0, -40.0, -0.5, -1.0)]


def expected(penalty: Penalty) -> torch.Tensor:
    gap = torch.tensor(LOGPROBS, dtype=torch.float64) - torch.tensor(REFERENCE, dtype=torch.float64)
    if penalty == "kl":
        return gap
    if penalty == "abs":
        return gap.abs()
    if penalty == "mse":
        return 0.5 * gap.square()
    back = (-gap).clamp(-20, 20)
    return (back.exp() - back - 1).clamp(-10, 10)


@pytest.fixture
def group(make_sample: Callable[..., Sample], problem: Problem) -> Group:
    pair = (make_sample(prompt=[1], answer=[2, 3, 4], reward=reward) for reward in (1.0, 0.0))
    return Group(problem, 0, tuple(pair))


@pytest.mark.parametrize("penalty", ["kl", "abs", "mse", "low_var_kl"])
def test_rewards_of_tokens_are_the_penalties_of_verl(group: Group, penalty: Penalty) -> None:
    algorithm = GrpoConfig(kl_in_reward=0.1, kl_penalty=penalty).make(9)
    assert (
        algorithm.requirements.reference,
        algorithm.requirements.ref_logprobs,
        algorithm.requirements.kl_in_reward,
    ) == (True, False, 0.1)
    (found,), figures = algorithm.penalise([group], LOGPROBS, REFERENCE)
    kl = expected(penalty)[:, 1:]
    for sample, row in zip(found.samples, kl.tolist(), strict=True):
        assert sample.token_rewards == pytest.approx((0.0, *(-0.1 * each for each in row)))
    assert figures == {"actor/reward_kl_penalty": pytest.approx(kl.mean().item())}


def test_advantages_come_from_rewards_less_the_sum_of_penalties(group: Group) -> None:
    algorithm = RlooConfig(kl_in_reward=0.1).make(9)
    (found,), _ = algorithm.penalise([group], LOGPROBS, REFERENCE)
    first, second = (1.0, 0.0) - 0.1 * expected("kl")[:, 1:].sum(-1).numpy()
    assert algorithm.advantages([found]) == [pytest.approx((first - second, second - first))]


def test_a_critic_gets_the_penalty_of_each_token(group: Group) -> None:
    algorithm = PpoConfig(kl_in_reward=0.1, whiten=False).make(9)
    (found,), _ = algorithm.penalise([group], LOGPROBS, REFERENCE)
    values = (0.0, 0.3, 0.2, 0.1)
    (estimated,) = algorithm.compute_gae([replace(found, samples=(replace(found.samples[0], values=values),))])
    rewards = (-0.1 * expected("kl")[0, 1:]).tolist()
    rewards[-1] += 1.0
    returns = list(accumulate(reversed(rewards)))[::-1]  # gamma = lam = 1
    assert estimated.samples[0].returns[1:] == pytest.approx(returns)
